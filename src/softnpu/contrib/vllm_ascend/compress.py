"""Compressed caches of `_C_ascend` (DeepSeek-V4): where the compressed tokens of a step go."""

from __future__ import annotations

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must

__all__ = ["compressor_metadata", "compressor_metadata_out"]

FLAT, PAIRS = 1, 2


def _fill(
    rope_cos, rope_sin, cu_seqlens, start_pos, table, block, kind, ratio, requests, cos, sin, slots
):
    """Rows one after the other: cos and sin of each group's first token, and its slot; the rest holds 1, 0 and -1."""
    cos.fill_(1)
    sin.fill_(0)
    slots.fill_(-1)
    if kind == PAIRS:
        slots[:, 1] = block - 1
    flat_cos, flat_sin = cos.view(cos.shape[0], -1), sin.view(sin.shape[0], -1)
    bounds, starts, row = cu_seqlens.tolist(), start_pos.tolist(), 0
    for request in range(requests):
        start, length = starts[request], bounds[request + 1] - bounds[request]
        if start < 0 or length <= 0:
            continue
        for place in range(start // ratio, (start + length) // ratio):
            if row == cos.shape[0]:
                return
            page = place // block
            number = int(table[request, page]) if page < table.shape[1] else -1
            if number >= 0:
                flat_cos[row], flat_sin[row] = rope_cos[place * ratio], rope_sin[place * ratio]
                pair = (number, place % block)
                slots[row] = torch.tensor(pair) if kind == PAIRS else number * block + place % block
            row += 1


def _check(
    rope_cos,
    rope_sin,
    cu_seqlens,
    start_pos,
    kv_block_table,
    kv_block_size,
    slot_mapping_format,
    compress_ratio,
    num_reqs_actual,
):
    must.ndim("rope_cos", rope_cos, 2)
    must.hold(rope_cos.numel() > 0, "rope_cos", "not empty", tuple(rope_cos.shape))
    must.same_dtype("rope_sin", rope_sin, "rope_cos", rope_cos)
    must.shape("rope_sin", rope_sin, tuple(rope_cos.shape))
    must.choice("slot_mapping_format", slot_mapping_format, (FLAT, PAIRS))
    for name, value in (
        ("kv_block_size", kv_block_size),
        ("compress_ratio", compress_ratio),
        ("num_reqs_actual", num_reqs_actual),
    ):
        must.hold(value > 0, name, "positive", value)
    for name, tensor, dims, least in (
        ("cu_seqlens", cu_seqlens, 1, num_reqs_actual + 1),
        ("start_pos", start_pos, 1, num_reqs_actual),
        ("kv_block_table", kv_block_table, 2, num_reqs_actual),
    ):
        must.dtype(name, tensor, torch.int32)
        must.ndim(name, tensor, dims)
        fits = tensor.shape[0] >= least
        must.hold(fits, name, f"of at least {least} rows", tuple(tensor.shape))


_COMMON = (
    "Tensor rope_cos, Tensor rope_sin, Tensor cu_seqlens, Tensor start_pos, "
    "Tensor kv_block_table, int kv_block_size, int slot_mapping_format, int compress_ratio, "
)


@ascend_op(
    f"compressor_metadata({_COMMON}int num_compressed_tokens, int num_reqs_actual) -> "
    "(Tensor, Tensor, Tensor)"
)
def compressor_metadata(
    rope_cos,
    rope_sin,
    cu_seqlens,
    start_pos,
    kv_block_table,
    kv_block_size,
    slot_mapping_format,
    compress_ratio,
    num_compressed_tokens,
    num_reqs_actual,
):
    """For each group of `compress_ratio` tokens that a request completes: cos and sin of its first token, its slot.

    A slot is a number (format 1) or a block and an offset (format 2); what is left over is marked by -1.
    """
    made = _metadata(rope_cos, slot_mapping_format, num_compressed_tokens)
    _fill(
        rope_cos, rope_sin, cu_seqlens, start_pos, kv_block_table, kv_block_size,
        slot_mapping_format, compress_ratio, num_reqs_actual, *made,
    )  # fmt: skip
    return made


def _metadata(rope_cos, kind, count):
    shape = (count, 1, 1, rope_cos.shape[1])
    slots = (count, 2) if kind == PAIRS else (count,)
    made = rope_cos.new_empty(shape), rope_cos.new_empty(shape)
    return *made, rope_cos.new_empty(slots, dtype=torch.int32)


@compressor_metadata.meta
def _(rope_cos, slot_mapping_format, num_compressed_tokens):
    return _metadata(rope_cos, slot_mapping_format, num_compressed_tokens)


@compressor_metadata.check
def _(num_compressed_tokens, **rest):
    fits = num_compressed_tokens > 0
    must.hold(fits, "num_compressed_tokens", "positive", num_compressed_tokens)
    _check(**rest)


@ascend_op(
    f"compressor_metadata_out({_COMMON}int num_reqs_actual, Tensor(a!) compress_cos, "
    "Tensor(b!) compress_sin, Tensor(c!) slot_mapping) -> (Tensor(a!), Tensor(b!), Tensor(c!))"
)
def compressor_metadata_out(
    rope_cos,
    rope_sin,
    cu_seqlens,
    start_pos,
    kv_block_table,
    kv_block_size,
    slot_mapping_format,
    compress_ratio,
    num_reqs_actual,
    compress_cos,
    compress_sin,
    slot_mapping,
):
    """`compressor_metadata` into given tensors."""
    made = (compress_cos, compress_sin, slot_mapping)
    _fill(
        rope_cos, rope_sin, cu_seqlens, start_pos, kv_block_table, kv_block_size,
        slot_mapping_format, compress_ratio, num_reqs_actual, *made,
    )  # fmt: skip
    return made


@compressor_metadata_out.meta
def _(compress_cos, compress_sin, slot_mapping):
    return compress_cos, compress_sin, slot_mapping


@compressor_metadata_out.check
def _(rope_cos, slot_mapping_format, compress_cos, compress_sin, slot_mapping, **rest):
    _check(rope_cos=rope_cos, slot_mapping_format=slot_mapping_format, **rest)
    must.same_dtype("compress_cos", compress_cos, "rope_cos", rope_cos)
    fits = compress_cos.dim() >= 2 and compress_cos[0].numel() == rope_cos.shape[1]
    expected = f"of rows of {rope_cos.shape[1]} elements"
    must.hold(fits, "compress_cos", expected, tuple(compress_cos.shape))
    must.same_dtype("compress_sin", compress_sin, "rope_cos", rope_cos)
    must.shape("compress_sin", compress_sin, tuple(compress_cos.shape))
    must.dtype("slot_mapping", slot_mapping, torch.int32)
    rows = compress_cos.shape[0]
    must.shape("slot_mapping", slot_mapping, (rows, 2) if slot_mapping_format == PAIRS else (rows,))
