"""_npu_paged_attention_v2: decode attention over a paged cache with a list of lengths and an ALiBi mask."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _decode
from torch_npu.ops.atb._attend import in_blocks, natively

NO_MASK, ALIBI = 0, 2


@npu_op(
    "atb::_npu_paged_attention_v2.out(Tensor query, Tensor key_cache, Tensor block_table, "
    "SymInt[] context_lens, *, Tensor? value_cache=None, Tensor? mask=None, int num_kv_heads=0, "
    "int num_heads=0, float scale_value=1.0, int mask_type=0, Tensor? workspace=None, "
    "Tensor(a!) out) -> Tensor(a!)",
    ge="PagedAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_paged_attention_v2(
    query,
    key_cache,
    block_table,
    context_lens,
    value_cache,
    mask,
    num_kv_heads,
    num_heads,
    scale_value,
    mask_type,
    out,
):
    r"""Attention of single tokens over the pages of their sequences, with or without an ALiBi mask.

    $$ out_i = \mathrm{softmax}(scale \cdot q_i K_i^T + mask_i) V_i $$

    Args:
        query: (tokens, num_heads, D), float16 or bfloat16.
        key_cache: (blocks, block, num_kv_heads, D); NZ on the Atlas inference series.
        block_table: (tokens, pages), int32.
        context_lens: the number of keys of each token.
        value_cache: like `key_cache` with the head size of `out`; needed.
        mask: with `mask_type` 2, (batch, num_heads, rows, S) or (num_heads, rows, S); the first row is added to
            the scores.
        num_kv_heads: a divisor of `num_heads`; 0 for as many.
        num_heads: query heads.
        scale_value: factor of the scores.
        mask_type: 0 without a mask, 2 for ALiBi (on A2 and A3).
        workspace: scratch memory for graphs, of `_npu_paged_attention_v2_get_workspace`; not needed here.
        out: (tokens, num_heads, Dv), written.

    Returns:
        `out`.
    """
    mask = mask if mask_type == ALIBI else None
    arguments = (num_kv_heads, num_heads, scale_value, block_table, context_lens, out, mask)
    _decode.decode(in_blocks, query, key_cache, value_cache, *arguments)
    return out


@_npu_paged_attention_v2.native
def _(
    query,
    key_cache,
    block_table,
    context_lens,
    value_cache,
    mask,
    num_kv_heads,
    num_heads,
    scale_value,
    mask_type,
    out,
):
    mask = mask if mask_type == ALIBI else None
    arguments = (num_kv_heads, num_heads, scale_value, block_table, context_lens, out, mask)
    _decode.decode(natively, query, key_cache, value_cache, *arguments)
    return out


def _check(
    query,
    key_cache,
    block_table,
    context_lens,
    value_cache,
    mask,
    num_kv_heads,
    num_heads,
    scale_value,
    mask_type,
    out,
):
    rules.family("query", "A2", "A3", "A5", "310P", "910A")
    rules.scale("scale_value", scale_value)
    # masks of 310P and 910A are in NZ, and Ascend950 has no input for one
    plain = chips.current().family in ("A2", "A3")
    must.choice("mask_type", mask_type, (NO_MASK, ALIBI) if plain else (NO_MASK,))
    must.present("value_cache", value_cache, "(values are not part of the keys here)")
    must.dtype("query", query, *rules.FLOATS)
    must.same_dtype("key_cache", key_cache, "query", query)
    must.same_dtype("value_cache", value_cache, "query", query)
    must.same_dtype("out", out, "query", query)
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
    if mask_type == ALIBI:
        must.present("mask", mask, "with mask_type 2")
        must.same_dtype("mask", mask, "query", query)
        must.ndim("mask", mask, 3, 4)
        batch = (len(context_lens),) if mask.dim() == 4 else ()
        must.shape("mask", mask, (*batch, num_heads, None, None))
        must.hold(mask.shape[-2] >= 1, "mask", "of at least 1 row", tuple(mask.shape))
        known = rules.lengths("context_lens", context_lens)
        if known is not None:
            expected = f"of at least {max(known, default=0)} columns"
            fits = mask.shape[-1] >= max(known, default=0)
            must.hold(fits, "mask", expected, tuple(mask.shape), ErrCode.PARAM)


@_npu_paged_attention_v2.check
def _(
    query,
    key_cache,
    block_table,
    context_lens,
    value_cache,
    mask,
    num_kv_heads,
    num_heads,
    scale_value,
    mask_type,
    workspace,
    out,
):
    must.anything(workspace)
    caches = (key_cache, block_table, context_lens, value_cache, mask)
    _check(query, *caches, num_kv_heads, num_heads, scale_value, mask_type, out)


@_npu_paged_attention_v2.meta
def _(out):
    return out


def _options(make):
    return {
        "value_cache": make(6, 16, 2, 16, dtype=torch.float16, seed=2),
        "num_kv_heads": 2,
        "num_heads": 4,
        "scale_value": 0.25,
        "out": make(3, 4, 16, dtype=torch.float16),
    }


def _build(make):
    return (
        make(3, 4, 16, dtype=torch.float16),
        make(6, 16, 2, 16, dtype=torch.float16),
        make(3, 2, dtype=torch.int32, low=0, high=6),
        [20, 1, 17],
    )


_npu_paged_attention_v2.samples = [
    Sample(_build, _options),
    Sample(
        _build,
        lambda make: (
            _options(make) | {"mask": make(3, 4, 1, 32, dtype=torch.float16), "mask_type": ALIBI}
        ),
    ),
]


@npu_op(
    "atb::_npu_paged_attention_v2_get_workspace(Tensor query, Tensor key_cache, Tensor block_table, "
    "SymInt[] context_lens, *, Tensor? value_cache=None, Tensor? mask=None, int num_kv_heads=0, "
    "int num_heads=0, float scale_value=1.0, int mask_type=0, Tensor(a!) out) -> Tensor",
)
def _npu_paged_attention_v2_get_workspace(query):
    """Scratch memory for `_npu_paged_attention_v2` in a graph: 1-D, uint8. `out` is only looked at."""
    return rules.workspace(query)


@_npu_paged_attention_v2_get_workspace.check
def _(
    query,
    key_cache,
    block_table,
    context_lens,
    value_cache,
    mask,
    num_kv_heads,
    num_heads,
    scale_value,
    mask_type,
    out,
):
    caches = (key_cache, block_table, context_lens, value_cache, mask)
    _check(query, *caches, num_kv_heads, num_heads, scale_value, mask_type, out)


_npu_paged_attention_v2_get_workspace.samples = _npu_paged_attention_v2.samples[:1]
