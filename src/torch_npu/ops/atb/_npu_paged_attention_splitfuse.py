"""_npu_paged_attention_splitfuse: prompts and single tokens in one batch, over a paged cache with a mask."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _decode
from torch_npu.ops.atb._attend import (
    Paged,
    Rows,
    attend,
    in_blocks,
    integers,
    natively,
    pages_of,
    starts,
)


@npu_op(
    "atb::_npu_paged_attention_splitfuse(Tensor query, Tensor key_cache, Tensor value_cache, "
    "Tensor block_table, Tensor context_lens, Tensor mask, Tensor seq_len, int num_kv_heads, "
    "int num_heads, float scale_value, Tensor(a!) out) -> ()",
    host_ok=True,
    ge="PagedAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_paged_attention_splitfuse(
    query,
    key_cache,
    value_cache,
    block_table,
    context_lens,
    mask,
    seq_len,
    num_kv_heads,
    num_heads,
    scale_value,
    out,
):
    r"""Attention of sequences of several tokens over their pages, a mask added to the scores.

    $$ out = \mathrm{softmax}(scale \cdot Q K^T + mask) V $$

    Args:
        query: (tokens, num_heads, D), the tokens of all sequences; float16 or bfloat16.
        key_cache: (blocks, block, num_kv_heads, D); NZ on the Atlas inference series.
        value_cache: like `key_cache`.
        block_table: (batch, pages), int32.
        context_lens: (batch,), int32 on the host, on 310P on the device as well: the keys of each sequence, its
            new tokens among them.
        mask: (tokens, S), the rows of all sequences one after the other, or (batch, num_heads, rows, S), added to
            the scores (0, and -10000 or another large negative number where a key is hidden); on 310P in NZ,
            (1, S / 16, tokens, 16).
        seq_len: (batch,), int32 on the host: the new tokens of each sequence.
        num_kv_heads: a divisor of `num_heads`; 0 for as many.
        num_heads: query heads.
        scale_value: factor of the scores.
        out: (tokens, num_heads, D), written.

    Returns:
        Nothing.
    """
    _run(
        in_blocks,
        query,
        key_cache,
        value_cache,
        block_table,
        context_lens,
        mask,
        seq_len,
        num_kv_heads,
        num_heads,
        scale_value,
        out,
    )


def _run(
    engine,
    query,
    key_cache,
    value_cache,
    block_table,
    context_lens,
    mask,
    seq_len,
    num_kv_heads,
    num_heads,
    scale_value,
    out,
):
    kv_heads = num_kv_heads or num_heads
    key, value = (pages_of(cache, kv_heads, query.shape[2]) for cache in (key_cache, value_cache))
    if _nz(mask):  # the rows of all sequences
        mask = mask[0].transpose(0, 1).flatten(1)
    lengths, contexts = integers(seq_len), integers(context_lens)
    sequences = [
        Rows(start, n, length, bias=_bias(mask, index, start, n, length))
        for index, (start, n, length) in enumerate(
            zip(starts(lengths), lengths, contexts, strict=True)
        )
    ]
    made = out.new_zeros(out.shape)
    attend(engine, query, Paged(key, value, block_table), made, sequences, scale_value)
    out[: sum(lengths)] = made[: sum(lengths)]


def _nz(mask) -> bool:
    """A mask (1, S / 16, tokens, 16), as the Atlas inference series has it."""
    return mask.dim() == 4 and chips.current().family == "310P"


def _bias(mask, index, start, rows, columns):
    """The rows of one sequence: of its own matrix for each head, or of the matrix of all sequences."""
    if mask.dim() == 4:
        return mask[index, :, :rows, :columns]
    return mask[start : start + rows, :columns].unsqueeze(0)


@_npu_paged_attention_splitfuse.native
def _(**arguments):
    _run(natively, **arguments)


@_npu_paged_attention_splitfuse.check
def _(
    query,
    key_cache,
    value_cache,
    block_table,
    context_lens,
    mask,
    seq_len,
    num_kv_heads,
    num_heads,
    out,
):
    rules.family("query", "A2", "A3", "310P")
    must.dtype("query", query, *rules.FLOATS)
    for name, tensor in (("key_cache", key_cache), ("value_cache", value_cache), ("mask", mask)):
        must.same_dtype(name, tensor, "query", query)
    must.same_dtype("out", out, "query", query)
    rules.keys("context_lens", context_lens)
    rules.on_host("seq_len", seq_len)
    must.shape("seq_len", seq_len, tuple(context_lens.shape))
    arguments = (block_table, context_lens, out, "context_lens", True)
    _decode.check(query, key_cache, value_cache, num_kv_heads, num_heads, *arguments)
    new = rules.lengths("seq_len", seq_len, query.shape[0])
    known = rules.lengths("context_lens", context_lens)
    _check_mask(mask, new, known, num_heads)


def _check_mask(mask, new, known, num_heads):
    if chips.current().family == "310P":
        must.shape("mask", mask, (1, None, None, 16))
        rows, columns = mask.shape[2], mask.shape[1] * 16
    else:
        must.hold(mask.dim() in (2, 4), "mask", "of 2 or 4 dimensions", tuple(mask.shape))
        rows, columns = mask.shape[-2:]
        if mask.dim() == 4:
            batch = None if new is None else len(new)
            must.shape("mask", mask, (batch, num_heads, None, None))
    if known is not None and new is not None:
        together = mask.dim() == 2 or chips.current().family == "310P"
        least = sum(new) if together else max(new, default=0)
        fits = rows >= least and columns >= max(known, default=0)
        expected = f"of at least {least} rows and {max(known, default=0)} columns"
        must.hold(fits, "mask", expected, tuple(mask.shape), ErrCode.PARAM)


@_npu_paged_attention_splitfuse.meta
def _():
    return None


_npu_paged_attention_splitfuse.samples = [
    Sample(
        lambda make: (
            make(6, 4, 16, dtype=torch.bfloat16),
            make(6, 16, 2, 16, dtype=torch.bfloat16),
            make(6, 16, 2, 16, dtype=torch.bfloat16, seed=2),
            make(2, 2, dtype=torch.int32, low=0, high=6),
            torch.tensor([20, 17], dtype=torch.int32),
            make(6, 32, dtype=torch.bfloat16),
            torch.tensor([5, 1], dtype=torch.int32),
            2,
            4,
            0.25,
            make(6, 4, 16, dtype=torch.bfloat16),
        )
    ),
]
