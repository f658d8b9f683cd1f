"""_npu_paged_attention: decode attention over a paged cache, and the workspace of its captured form."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _decode
from torch_npu.ops.atb._attend import in_blocks, natively


@npu_op(
    "atb::_npu_paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, int num_kv_heads, "
    "int num_heads, float scale_value, Tensor block_table, Tensor context_lens, Tensor(a!) out, *, "
    "Tensor? workspace=None) -> ()",
    host_ok=True,
    ge="PagedAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_paged_attention(
    query,
    key_cache,
    value_cache,
    num_kv_heads,
    num_heads,
    scale_value,
    block_table,
    context_lens,
    out,
):
    r"""Attention of single tokens over the pages of their sequences, written into `out`.

    $$ out_i = \mathrm{softmax}(scale \cdot q_i K_i^T) V_i $$

    where $K_i$ and $V_i$ are the first `context_lens[i]` tokens of the pages `block_table[i]`.

    Args:
        query: (tokens, num_heads, D), float16 or bfloat16.
        key_cache: (blocks, block, num_kv_heads, D); on 310P and 910A (blocks, num_kv_heads * D / 16, block, 16), NZ.
        value_cache: the same with the head size of `out`.
        num_kv_heads: a divisor of `num_heads`; 0 for as many.
        num_heads: query heads.
        scale_value: factor of the scores.
        block_table: (tokens, pages), int32.
        context_lens: (tokens,), int32, on the host; on 310P and 910A on the device as well.
        out: (tokens, num_heads, Dv), written.
        workspace: scratch memory for graphs, of `_npu_paged_attention_get_workspace`; not needed here.

    Returns:
        Nothing.
    """
    _decode.decode(
        in_blocks,
        query,
        key_cache,
        value_cache,
        num_kv_heads,
        num_heads,
        scale_value,
        block_table,
        context_lens,
        out,
    )


def _check(
    query, key_cache, value_cache, num_kv_heads, num_heads, scale_value, block_table, context_lens, out
):  # fmt: skip
    rules.family("query", "A2", "A3", "A5", "310P", "910A")
    rules.scale("scale_value", scale_value)
    must.dtype("query", query, *rules.FLOATS)
    must.same_dtype("key_cache", key_cache, "query", query)
    must.same_dtype("value_cache", value_cache, "query", query)
    must.same_dtype("out", out, "query", query)
    rules.keys("context_lens", context_lens)
    _decode.check(
        query,
        key_cache,
        value_cache,
        num_kv_heads,
        num_heads,
        block_table,
        context_lens,
        out,
        "context_lens",
    )


@_npu_paged_attention.check
def _(
    query,
    key_cache,
    value_cache,
    num_kv_heads,
    num_heads,
    scale_value,
    block_table,
    context_lens,
    out,
    workspace,
):
    must.anything(workspace)
    heads = (num_kv_heads, num_heads, scale_value)
    _check(query, key_cache, value_cache, *heads, block_table, context_lens, out)


@_npu_paged_attention.native
def _(
    query,
    key_cache,
    value_cache,
    num_kv_heads,
    num_heads,
    scale_value,
    block_table,
    context_lens,
    out,
):
    _decode.decode(
        natively,
        query,
        key_cache,
        value_cache,
        num_kv_heads,
        num_heads,
        scale_value,
        block_table,
        context_lens,
        out,
    )


@_npu_paged_attention.meta
def _():
    return None


_npu_paged_attention.samples = [
    Sample(
        lambda make: (
            make(3, 4, 16, dtype=torch.float16),
            make(6, 16, 2, 16, dtype=torch.float16),
            make(6, 16, 2, 16, dtype=torch.float16, seed=2),
            2,
            4,
            0.25,
            make(3, 2, dtype=torch.int32, low=0, high=6),
            torch.tensor([20, 1, 17], dtype=torch.int32),
            make(3, 4, 16, dtype=torch.float16),
        )
    ),
    Sample(
        lambda make: (
            make(2, 2, 32, dtype=torch.bfloat16),
            make(4, 16, 1, 32, dtype=torch.bfloat16),
            make(4, 16, 1, 16, dtype=torch.bfloat16),
            1,
            2,
            0.2,
            make(2, 2, dtype=torch.int32, low=0, high=4),
            torch.tensor([32, 5], dtype=torch.int32),
            make(2, 2, 16, dtype=torch.bfloat16),
        )
    ),
]


@npu_op(
    "atb::_npu_paged_attention_get_workspace(Tensor query, Tensor key_cache, Tensor value_cache, "
    "int num_kv_heads, int num_heads, float scale_value, Tensor block_table, Tensor context_lens, "
    "Tensor(a!) out) -> Tensor",
    host_ok=True,
)
def _npu_paged_attention_get_workspace(query):
    """Scratch memory for `_npu_paged_attention` in a graph: 1-D, uint8. `out` is only looked at."""
    return rules.workspace(query)


@_npu_paged_attention_get_workspace.check
def _(
    query,
    key_cache,
    value_cache,
    num_kv_heads,
    num_heads,
    scale_value,
    block_table,
    context_lens,
    out,
):
    heads = (num_kv_heads, num_heads, scale_value)
    _check(query, key_cache, value_cache, *heads, block_table, context_lens, out)


_npu_paged_attention_get_workspace.samples = _npu_paged_attention.samples[:1]
