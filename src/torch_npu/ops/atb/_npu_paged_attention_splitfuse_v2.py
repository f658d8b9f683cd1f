"""_npu_paged_attention_splitfuse_v2: prompts and single tokens over a paged cache, causal, on 310P."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _decode, _prompt
from torch_npu.ops.atb._attend import in_blocks, natively

_MASKS = tuple((1,) * n + (2048, 2048) for n in range(3))


@npu_op(
    "atb::_npu_paged_attention_splitfuse_v2(Tensor query, Tensor key_cache, Tensor value_cache, "
    "Tensor block_table, Tensor context_lens, Tensor mask, Tensor seq_len, int num_kv_heads, "
    "int num_heads, float scale_value, *, int? mask_type=5, Tensor(a!) out) -> ()",
    host_ok=True,
    ge="PagedAttention",
    core="MIX_AIC",
    product=True,
    chips=("310P",),
)
def _npu_paged_attention_splitfuse_v2(
    query,
    key_cache,
    value_cache,
    block_table,
    context_lens,
    seq_len,
    num_kv_heads,
    num_heads,
    scale_value,
    out,
):
    r"""Causal attention of the last `seq_len` tokens of each sequence over all its `context_lens` tokens in pages.

    $$ out = \mathrm{softmax}(scale \cdot Q K^T, causal) V $$

    Args:
        query: (tokens, num_heads, D), the tokens of all sequences; float16.
        key_cache: (blocks, num_kv_heads * D / 16, block, 16), NZ.
        value_cache: like `key_cache`.
        block_table: (batch, pages), int32.
        context_lens: (batch,), int32: the keys of each sequence, its new tokens among them.
        mask: (2048, 2048), float16, the causal template: 0, and not 0 above the diagonal.
        seq_len: (batch,), int32 on the host: the new tokens of each sequence.
        num_kv_heads: a divisor of `num_heads`; 0 for as many.
        num_heads: query heads.
        scale_value: factor of the scores.
        mask_type: 5.
        out: (tokens, num_heads, D), written.

    Returns:
        Nothing.
    """
    caches = (key_cache, value_cache, block_table)
    lengths = (seq_len, context_lens, scale_value, num_heads, num_kv_heads, out)
    _prompt.prefixed(in_blocks, query, *caches, *lengths)


@_npu_paged_attention_splitfuse_v2.native
def _(
    query,
    key_cache,
    value_cache,
    block_table,
    context_lens,
    seq_len,
    num_kv_heads,
    num_heads,
    scale_value,
    out,
):
    caches = (key_cache, value_cache, block_table)
    lengths = (seq_len, context_lens, scale_value, num_heads, num_kv_heads, out)
    _prompt.prefixed(natively, query, *caches, *lengths)


@_npu_paged_attention_splitfuse_v2.check
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
    mask_type,
    out,
):
    must.choice("mask_type", mask_type, (None, 5), upstream="mask_type only supports")
    for name, tensor in (("key_cache", key_cache), ("value_cache", value_cache), ("out", out)):
        must.same_dtype(name, tensor, "query", query)
    must.dtype("mask", mask, torch.float16)
    shape = tuple(mask.shape)
    must.hold(shape in _MASKS, "mask", f"of shape {must.one_of(_MASKS)}", shape)
    _prompt.check_triangle(mask.reshape(2048, 2048))
    rules.keys("context_lens", context_lens)
    rules.on_host("seq_len", seq_len)
    must.shape("seq_len", seq_len, tuple(context_lens.shape))
    arguments = (block_table, context_lens, out, "context_lens", True)
    _decode.check(query, key_cache, value_cache, num_kv_heads, num_heads, *arguments)
    new = rules.lengths("seq_len", seq_len, query.shape[0])
    known = rules.lengths("context_lens", context_lens)
    for short, long in zip(new or [], known or [], strict=False):
        must.hold(short <= long, "context_lens", f"at least the new tokens ({short})", long)


@_npu_paged_attention_splitfuse_v2.meta
def _():
    return None


_npu_paged_attention_splitfuse_v2.samples = [
    Sample(
        lambda make: (
            make(6, 4, 16, dtype=torch.float16),
            make(6, 2, 16, 16, dtype=torch.float16),
            make(6, 2, 16, 16, dtype=torch.float16, seed=2),
            make(2, 2, dtype=torch.int32, low=0, high=6),
            torch.tensor([20, 17], dtype=torch.int32),
            (make(2048, 2048, dtype=torch.float16, low=1, high=2).triu(1) > 0).half(),
            torch.tensor([5, 1], dtype=torch.int32),
            2,
            4,
            0.25,
        ),
        lambda make: {"out": make(6, 4, 16, dtype=torch.float16)},
    ),
]
