"""_npu_paged_attention_splitfuse: prompts and single tokens in one batch, over a paged cache with a mask."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb._attend import (
    Paged,
    Rows,
    attend,
    by_heads,
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
        value_cache: the same with the head size of `out`.
        block_table: (batch, pages), int32.
        context_lens: (batch,), int32 on the host: the keys of each sequence, its new tokens among them.
        mask: (tokens, S), the rows of all sequences one after the other, added to the scores (0, and -10000 or
            another large negative number where a key is hidden); NZ on the Atlas inference series.
        seq_len: (batch,), int32 on the host: the new tokens of each sequence.
        num_kv_heads: a divisor of `num_heads`.
        num_heads: query heads.
        scale_value: factor of the scores.
        out: (tokens, num_heads, Dv), written.

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
    rows, target = by_heads(query, num_heads), by_heads(out, num_heads)
    key = pages_of(key_cache, num_kv_heads, rows.shape[2])
    value = pages_of(value_cache, num_kv_heads, target.shape[2])
    if mask.dim() == 4:  # (1, S / 16, tokens, 16): the rows of a mask in NZ
        mask = mask[0].transpose(0, 1).flatten(1)
    lengths, contexts = integers(seq_len), integers(context_lens)
    sequences = [
        Rows(start, n, length, bias=mask[start : start + n, :length].unsqueeze(0))
        for start, n, length in zip(starts(lengths), lengths, contexts, strict=True)
    ]
    made = target.new_zeros(target.shape)
    attend(engine, rows, Paged(key, value, block_table), made, sequences, scale_value)
    count = sum(lengths)
    out[:count] = made[:count].reshape(count, *out.shape[1:])


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
    rules.heads(num_heads, num_kv_heads, ("num_heads", "num_kv_heads"))
    rules.tokens("query", query, num_heads)
    rules.tokens("out", out, num_heads)
    must.hold(
        out.shape[0] == query.shape[0],
        "out",
        f"of {query.shape[0]} tokens, as 'query'",
        out.shape[0],
    )
    by = num_heads if query.dim() == 2 else 1
    rules.cache("key_cache", key_cache, num_kv_heads, query.shape[-1] // by)
    by = num_heads if out.dim() == 2 else 1
    rules.cache("value_cache", value_cache, num_kv_heads, out.shape[-1] // by)
    rules.on_host("context_lens", context_lens)
    rules.on_host("seq_len", seq_len)
    must.shape("seq_len", seq_len, tuple(context_lens.shape))
    rules.table(block_table, context_lens.shape[0])
    new = rules.lengths("seq_len", seq_len, query.shape[0])
    known = rules.lengths("context_lens", context_lens)
    must.hold(mask.dim() in (2, 4), "mask", "of 2 dimensions (4 in NZ)", tuple(mask.shape))
    columns = mask.shape[1] if mask.dim() == 2 else mask.shape[1] * mask.shape[3]
    rows = mask.shape[0] if mask.dim() == 2 else mask.shape[2]
    if known is not None and new is not None:
        fits = rows >= sum(new) and columns >= max(known, default=0)
        expected = f"of at least {sum(new)} rows and {max(known, default=0)} columns"
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
