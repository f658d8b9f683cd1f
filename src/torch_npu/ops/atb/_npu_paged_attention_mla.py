"""_npu_paged_attention_mla: decode attention whose values are the first part of the keys."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _decode
from torch_npu.ops.atb._attend import in_blocks, natively


@npu_op(
    "atb::_npu_paged_attention_mla(Tensor query, Tensor key_cache, int num_kv_heads, int num_heads, "
    "float scale_value, Tensor block_table, Tensor context_lens, int mla_vheadsize, "
    "Tensor(a!) out) -> ()",
    host_ok=True,
    ge="PagedAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_paged_attention_mla(
    query,
    key_cache,
    num_kv_heads,
    num_heads,
    scale_value,
    block_table,
    context_lens,
    mla_vheadsize,
    out,
):
    r"""Attention of single tokens over a paged cache of latent vectors, of which the first elements are the values.

    $$ out_i = \mathrm{softmax}(scale \cdot q_i K_i^T) K_{i, :v} $$

    Args:
        query: (tokens, num_heads, D), float16 or bfloat16; D is at most 576.
        key_cache: (blocks, block, num_kv_heads, D).
        num_kv_heads: 1.
        num_heads: query heads.
        scale_value: factor of the scores.
        block_table: (tokens, pages), int32.
        context_lens: (tokens,), int32, on the host.
        mla_vheadsize: v, the elements of a key that are its value, at most D.
        out: (tokens, num_heads, v), written.

    Returns:
        Nothing.
    """
    value = key_cache[..., :mla_vheadsize]
    arguments = (num_kv_heads, num_heads, scale_value, block_table, context_lens, out)
    _decode.decode(in_blocks, query, key_cache, value, *arguments)


@_npu_paged_attention_mla.native
def _(
    query,
    key_cache,
    num_kv_heads,
    num_heads,
    scale_value,
    block_table,
    context_lens,
    mla_vheadsize,
    out,
):
    value = key_cache[..., :mla_vheadsize]
    arguments = (num_kv_heads, num_heads, scale_value, block_table, context_lens, out)
    _decode.decode(natively, query, key_cache, value, *arguments)


@_npu_paged_attention_mla.check
def _(query, key_cache, num_kv_heads, num_heads, block_table, context_lens, mla_vheadsize, out):
    rules.family("query", "A2", "A3")
    must.dtype("query", query, *rules.FLOATS)
    must.same_dtype("key_cache", key_cache, "query", query)
    must.same_dtype("out", out, "query", query)
    must.hold(num_kv_heads == 1, "num_kv_heads", "1", num_kv_heads)
    must.ndim("query", query, 3)
    size = query.shape[2]
    expected = f"from 1 to {size}, the head size of 'query'"
    must.hold(1 <= mla_vheadsize <= size, "mla_vheadsize", expected, mla_vheadsize)
    must.shape("out", out, (query.shape[0], num_heads, mla_vheadsize))
    rules.on_host("context_lens", context_lens)
    must.ndim("block_table", block_table, 2)
    batch = block_table.shape[0]
    must.hold(batch <= 8192, "block_table", "of at most 8192 sequences", batch)
    arguments = (block_table, context_lens, out, "context_lens")
    _decode.check(query, key_cache, None, num_kv_heads, num_heads, *arguments)


@_npu_paged_attention_mla.meta
def _():
    return None


_npu_paged_attention_mla.samples = [
    Sample(
        lambda make: (
            make(3, 4, 48, dtype=torch.float16),
            make(6, 16, 1, 48, dtype=torch.float16),
            1,
            4,
            0.25,
            make(3, 2, dtype=torch.int32, low=0, high=6),
            torch.tensor([20, 1, 17], dtype=torch.int32),
            32,
            make(3, 4, 32, dtype=torch.float16),
        )
    ),
]
