"""npu_kv_quant_sparse_flash_attention: latent attention over chosen keys that are stored in 8 bits."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops.attention import _sparse, _sparse_attend
from torch_npu.ops.attention import _sparse_rules as rules

NOPE, ROPE, TILE = 512, 64, 128
#: bytes of a key: the latent, its rope in 16 bits, a float32 scale for each tile
WIDTH = NOPE + 2 * ROPE + 4 * (NOPE // TILE)
#: what Ascend950 takes
NEW_HEADS = (1, 2, 4, 8, 16, 32, 48, 64, 128)


@npu_op(
    "npu_kv_quant_sparse_flash_attention(Tensor query, Tensor key, Tensor value, "
    "Tensor sparse_indices, float scale_value, int key_quant_mode, int value_quant_mode, *, "
    "Tensor? key_dequant_scale=None, Tensor? value_dequant_scale=None, Tensor? block_table=None, "
    "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_kv=None, "
    'int sparse_block_size=1, str layout_query="BSND", str layout_kv="BSND", int sparse_mode=3, '
    "int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807, "
    "int attention_mode=0, int quant_scale_repo_mode=1, int tile_size=128, int rope_head_dim=64, "
    "int? key_dtype=None, int? value_dtype=None, Tensor? sinks=None) -> Tensor",
    core="MIX_AIC",
    product=True,
)
def npu_kv_quant_sparse_flash_attention(
    query,
    key,
    sparse_indices,
    scale_value,
    block_table,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    sparse_block_size,
    layout_query,
    layout_kv,
    sparse_mode,
    tile_size,
    rope_head_dim,
    key_dtype,
    sinks,
):
    r"""`npu_sparse_flash_attention` over keys in 8 bits that carry their rope and their scales.

    $$ out = \mathrm{softmax}(scale \cdot q [\tilde K s, \tilde K_r]^T) \tilde K s $$

    A key of 656 bytes holds 512 elements of 8 bits, 64 of its rope in the dtype of `query`, and a float32 scale for
    each tile of 128 elements. Keys and values are the same memory.

    Args:
        query: (B, S1, N, 576) or TND (T1, N, 576), latent part and rope; bfloat16 or float16.
        key: (B, S2, 1, 656), TND (T2, 1, 656) or PA_BSND (blocks, block, 1, 656); int8, on Ascend950 also
            float8_e4m3fn.
        value: the dtype of `key`; not read, since values are the latent parts of the keys.
        sparse_indices: (B, S1, 1, n) or (T1, 1, n), int32; the first negative index ends a row.
        scale_value: factor of the scores.
        key_quant_mode: 2, a scale for each tile.
        value_quant_mode: 2.
        key_dequant_scale: read nowhere: the scales stand beside the data.
        value_dequant_scale: the same.
        block_table: (B, blocks), int32, in PA_BSND.
        actual_seq_lengths_query: as in npu_sparse_flash_attention.
        actual_seq_lengths_kv: as in npu_sparse_flash_attention.
        sparse_block_size: tokens of an index, a power of two up to 16; 1 on Ascend950.
        layout_query: 'BSND' or 'TND'.
        layout_kv: 'PA_BSND' or `layout_query`.
        sparse_mode: 0, or 3 for a causal edge at the lower right corner.
        pre_tokens: left at its default.
        next_tokens: left at its default.
        attention_mode: 2, the absorbed form.
        quant_scale_repo_mode: 1, scales stand beside the data.
        tile_size: 128.
        rope_head_dim: 64.
        key_dtype: `torch_npu.hifloat8` for keys in bytes, on Ascend950, with 2048 indices for each query; else None.
        value_dtype: the same.
        sinks: (N,), float32, Ascend950.

    Returns:
        (B, S1, N, 512) or (T1, N, 512), the dtype of `query`.
    """
    out = query.new_zeros((*query.shape[:-1], query.shape[-1] - rope_head_dim))
    rows, target = wide(_sparse.tokens(query)), out.view(-1, *out.shape[-2:])
    places = sparse_indices.reshape(-1, sparse_indices.shape[-1])
    lengths = (actual_seq_lengths_query, actual_seq_lengths_kv)
    for span in _sparse.spans(query, key, layout_query, layout_kv, *lengths):
        if span.columns == 0:
            continue
        own = slice(span.start, span.start + span.rows)
        stored = _sparse.keys(key, span, layout_kv, block_table)[:, 0].contiguous()
        keys = wide(_unpacked(stored, query.dtype, tile_size, rope_head_dim, key_dtype))
        values = keys[:, : out.shape[-1]]
        blocks = _sparse_attend.parts(
            span, sparse_mode, places[own], sparse_block_size, keys.shape[1]
        )
        for part, place, unseen in blocks:
            found, _, _ = _sparse_attend.forward(
                rows[own], keys, values, part, place, unseen, scale_value, sinks
            )
            target[span.start + part.start : span.start + part.stop] = found.to(out.dtype)
    return out


@npu_kv_quant_sparse_flash_attention.native
def _(
    query,
    key,
    sparse_indices,
    scale_value,
    block_table,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    sparse_block_size,
    layout_query,
    layout_kv,
    sparse_mode,
    tile_size,
    rope_head_dim,
    key_dtype,
    sinks,
):
    out = query.new_zeros((*query.shape[:-1], query.shape[-1] - rope_head_dim))
    rows, target = _sparse.tokens(query), out.view(-1, *out.shape[-2:])
    spans = _sparse.spans(
        query, key, layout_query, layout_kv, actual_seq_lengths_query, actual_seq_lengths_kv
    )
    places = sparse_indices.reshape(-1, sparse_indices.shape[-1])
    chosen, kept = _sparse_attend.chosen_rows(
        spans, rows.shape[0], sparse_mode, places, sparse_block_size, key, layout_kv, block_table
    )
    stored = _sparse.tokens(key)[:, 0]
    every = chosen.numel() >= stored.shape[0]  # queries share keys: all of them are unpacked, once

    def unpacked(tokens):
        return _unpacked(tokens.contiguous(), query.dtype, tile_size, rope_head_dim, key_dtype)

    keys = unpacked(stored if every else stored[:0])
    for part in _sparse.steps(rows.shape[0], chosen.shape[1] * query.shape[-1]):
        width = max(1, int(kept[part].max()))
        own = chosen[part, :width]
        if not every:
            keys = unpacked(stored[own.flatten()])
            own = torch.arange(own.numel()).view(own.shape)
        target[part] = _sparse_attend.natively(
            rows[part], keys, keys[:, : out.shape[-1]], own, kept[part], scale_value, sinks
        )[0]
    return out


def _unpacked(stored, dtype, tile, rope, code):
    """(tokens, 656) bytes as (tokens, 576) in the query's dtype."""
    nope = stored.shape[1] - 2 * rope
    nope = nope * tile // (tile + 4)
    bytes_ = stored.view(torch.uint8)
    scales = bytes_[:, nope + 2 * rope :].contiguous().view(torch.float32)
    turned = bytes_[:, nope : nope + 2 * rope].contiguous().view(dtype)
    low = bytes_[:, :nope] if code is not None else stored[:, :nope]
    values = _formats.decode(low, "hifloat8") if code is not None else low.float()
    latent = values.unflatten(1, (-1, tile)) * scales.unsqueeze(-1)
    return torch.cat((latent.flatten(1).to(dtype), turned), 1)


@npu_kv_quant_sparse_flash_attention.meta
def _(query, rope_head_dim):
    return query.new_empty((*query.shape[:-1], query.shape[-1] - rope_head_dim))


@npu_kv_quant_sparse_flash_attention.check
def _(
    query,
    key,
    value,
    sparse_indices,
    key_quant_mode,
    value_quant_mode,
    key_dequant_scale,
    value_dequant_scale,
    block_table,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    sparse_block_size,
    layout_query,
    layout_kv,
    sparse_mode,
    pre_tokens,
    next_tokens,
    attention_mode,
    quant_scale_repo_mode,
    tile_size,
    rope_head_dim,
    key_dtype,
    value_dtype,
    sinks,
):
    _sparse.check_family("query", "A2", "A3", "A5")
    for name, given in (("key_dtype", key_dtype), ("value_dtype", value_dtype)):
        _formats.check(name, given, "hifloat8")
    must.hold(key_dtype == value_dtype, "value_dtype", "as 'key_dtype'", value_dtype)
    must.dtype("query", query, torch.float16, torch.bfloat16)
    if key_dtype is not None:
        _sparse.check_family("key_dtype", "A5")
        must.dtype("key", key, torch.uint8, torch.int8)
        count = sparse_indices.shape[-1]
        must.hold(count == 2048, "sparse_indices", "of 2048 keys with hifloat8", count)
    else:
        must.dtype("key", key, torch.int8, *((torch.float8_e4m3fn,) if _sparse.new_chip() else ()))
    must.same_dtype("value", value, "key", key)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_kv, block_table)
    names = ("actual_seq_lengths_query", "actual_seq_lengths_kv", "layout_query", "layout_kv")
    _sparse.check_layouts(query, key, layout_query, layout_kv, *lengths, names)
    rules.heads(query.shape[-2], NEW_HEADS)
    must.hold(query.shape[-1] == NOPE + ROPE, "query", "of head size 576", query.shape[-1])
    fits = tuple(key.shape[-2:]) == (1, WIDTH)
    must.hold(fits, "key", f"of 1 head of {WIDTH}", tuple(key.shape))
    rules.indices(query, key, sparse_indices, sparse_block_size, layout_kv, 16)
    for name, mode in (("key_quant_mode", key_quant_mode), ("value_quant_mode", value_quant_mode)):
        must.choice(name, mode, (2,))
    must.anything(key_dequant_scale, value_dequant_scale)
    must.choice("attention_mode", attention_mode, (2,))
    must.choice("quant_scale_repo_mode", quant_scale_repo_mode, (1,))
    must.choice("tile_size", tile_size, (TILE,))
    must.choice("rope_head_dim", rope_head_dim, (ROPE,))
    must.choice("sparse_mode", sparse_mode, (0, 3))
    _sparse.check_tokens_limits(pre_tokens, next_tokens)
    rules.sinks(sinks, query)


def packed(latent, rope, scales):
    """Keys as the operator stores them: int8 latents, ropes and float32 scales in (..., 656) int8."""
    parts = (latent, rope.contiguous().view(torch.int8), scales.contiguous().view(torch.int8))
    return torch.cat(parts, -1)


def _keys(make, *shape):
    return packed(
        make(*shape, NOPE, dtype=torch.int8, low=-90, high=90),
        make(*shape, ROPE, dtype=torch.bfloat16),
        make(*shape, NOPE // TILE, low=0.001, high=0.01),
    )


npu_kv_quant_sparse_flash_attention.samples = [
    Sample(
        lambda make: (
            make(2, 3, 4, 576, dtype=torch.bfloat16),
            _keys(make, 2, 9, 1),
            _keys(make, 2, 9, 1),
            make(2, 3, 1, 5, dtype=torch.int32, low=0, high=9),
            0.05,
            2,
            2,
        ),
        {"attention_mode": 2},
    ),
]
