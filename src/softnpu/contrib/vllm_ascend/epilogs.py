"""Writing quantized tokens to caches of bytes: what follows the compressor of `_C_ascend` (DeepSeek-V4 on Ascend950).

Kernels: vllm-ascend, csrc/attention/kv_compress_epilog and indexer_compress_epilog_v2.
"""

from __future__ import annotations

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _pages

__all__ = ["indexer_compress_epilog_v2", "kv_compress_epilog"]

#: the last elements of a token, which stay in bfloat16
ROPE = 64
#: elements that share a float32 scale, and what the width of a row is a multiple of
GROUP = 128

_FLOAT8 = (torch.float8_e5m2, torch.float8_e4m3fn)
_BY_FLOAT, _BY_POWER = 1, 2
#: the least magnitude that counts for a scale that is a power of two
_LEAST = 1e-4


def groups(x: torch.Tensor, size: int) -> torch.Tensor:
    """(rows, groups, size) of (rows, columns) in float32; zeros fill the last group."""
    count = -(-x.shape[1] // size)
    padded = torch.nn.functional.pad(x.float(), (0, count * size - x.shape[1]))
    return padded.unflatten(1, (count, size))


def by_float(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups of 128 over their largest finite magnitude: the 8-bit floats, and a float32 scale for each group.

    Where the quotient is not finite (a group of zeros, an infinity) the element itself is rounded.
    """
    parts = groups(x, GROUP)
    top = parts.abs().where(parts.isfinite(), 0).amax(-1)
    inverse = torch.tensor(1.0 / torch.finfo(dtype).max, dtype=torch.float32)
    scale = top * inverse
    quotient = parts / scale.unsqueeze(-1)
    values = torch.where(quotient.isfinite(), quotient, parts)
    return values.to(dtype).flatten(1)[:, : x.shape[1]], scale


def by_power(
    x: torch.Tensor, dtype: torch.dtype, size: int, rounded: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Groups of `size`: the 8-bit floats, and the exponent's byte of each scale.

    A rounded scale is the next power of two above the quotient, also where that is a power of two itself: the kernel
    looks for the mantissa's bits in the exponent. Without rounding the byte loses the mantissa of the divisor.
    """
    parts = groups(x, size)
    limit = torch.finfo(dtype).max
    inverse = torch.tensor(1.0 / limit, dtype=torch.float32)
    scale = parts.abs().amax(-1).clamp(min=_LEAST) * inverse
    if rounded:
        exponent = (scale.view(torch.int32) >> 23) + 1
        scale = (exponent << 23).view(torch.float32)
    values = (parts / scale.unsqueeze(-1)).clamp(-limit, limit)
    byte = (scale.view(torch.int32) >> 23).to(torch.uint8)
    return values.to(dtype).flatten(1)[:, : x.shape[1]], byte


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def _blocks(cache: torch.Tensor, offset: int, tokens: int, width: int) -> torch.Tensor:
    """(blocks, tokens, width) bytes of the cache from `offset` of each block on; PyTorch keeps them in its memory."""
    data = cache.view(torch.uint8)
    shape, strides = (cache.shape[0], tokens, width), (cache.stride(0), width, 1)
    return data.as_strided(shape, strides, data.storage_offset() + offset)


def row_width(columns: int, mode: int, size: int) -> int:
    """The bytes of a token in layout 1: 8-bit floats, 64 elements in bfloat16 and the scales, whole multiples of 128."""
    count = -(-(columns - ROPE) // (size if mode == _BY_POWER else GROUP))
    used = columns + ROPE + count * (1 if mode == _BY_POWER else 4)
    return -(-used // GROUP) * GROUP


@ascend_op(
    "kv_compress_epilog(Tensor(a!) kv_compress_cache, Tensor x, Tensor slot_mapping, "
    "int quant_group_size, int quant_mode, bool round_scale_flag, int layout) -> ()"
)
def kv_compress_epilog(
    kv_compress_cache, x, slot_mapping, quant_group_size, quant_mode, round_scale_flag, layout
):
    """Quantizes all but the last 64 elements of each row of x and writes it to the slot; -1 writes nothing.

    `quant_mode` 1, a token's bytes: the 8-bit floats, the 64 elements in bfloat16, a float32 scale for each 128
    elements. 2: the 64 elements, the 8-bit floats, a scale of 8 bits (e8m0) for each `quant_group_size` elements. Zeros
    fill the row up to a multiple of 128. With `layout` 1 slot s begins at s times the stride of the cache's first
    dimension. With `quant_mode` 2 and `layout` 2 a block of the cache (blocks, block, D) holds the floats and the 64
    elements of all its tokens, then their scales, padded to a multiple of 8.
    """
    cache = kv_compress_cache.squeeze(2) if kv_compress_cache.dim() == 4 else kv_compress_cache
    first, rope = x[:, :-ROPE], _bytes(x[:, -ROPE:].contiguous())
    slots = slot_mapping
    if quant_mode == _BY_FLOAT:
        values, scale = by_float(first, cache.dtype)
        row = torch.cat((_bytes(values), rope, _bytes(scale)), 1)
    else:
        values, scale = by_power(first, cache.dtype, quant_group_size, round_scale_flag)
        if layout == 2:
            value = torch.cat((_bytes(values), rope), 1)
            padded = torch.nn.functional.pad(scale, (0, -scale.shape[1] % 8))
            block, width = cache.shape[1], value.shape[1]
            _pages.write(_blocks(cache, 0, block, width), slots, value)
            _pages.write(_blocks(cache, block * width, block, padded.shape[1]), slots, padded)
            return
        row = torch.cat((rope, _bytes(values), scale), 1)
    row = torch.nn.functional.pad(row, (0, -row.shape[1] % GROUP))
    if layout == 1:
        target = _blocks(cache, 0, 1, row.shape[1])
    else:
        flat = cache.view(torch.uint8).view(-1)
        count = flat.shape[0] // row.shape[1]
        target = flat[: count * row.shape[1]].view(count, 1, -1)
    _pages.write(target, slots, row)


@kv_compress_epilog.meta
def _():
    return None


@kv_compress_epilog.check
def _(kv_compress_cache, x, slot_mapping, quant_group_size, quant_mode, round_scale_flag, layout):
    must.anything(round_scale_flag)
    must.ndim("x", x, 2)
    must.dtype("x", x, torch.bfloat16)
    must.hold(x.shape[0] > 0 and x.shape[1] > ROPE, "x", f"of more than {ROPE} columns, not empty",
              tuple(x.shape))  # fmt: skip
    must.dtype("slot_mapping", slot_mapping, torch.int32, torch.int64)
    must.shape("slot_mapping", slot_mapping, (x.shape[0],))
    must.dtype("kv_compress_cache", kv_compress_cache, *_FLOAT8)
    must.ndim("kv_compress_cache", kv_compress_cache, 2, 4)
    if kv_compress_cache.dim() == 4:
        must.shape("kv_compress_cache", kv_compress_cache, (None, None, 1, None))
    must.choice("quant_mode", quant_mode, (_BY_FLOAT, _BY_POWER))
    if quant_mode == _BY_POWER:
        must.choice("quant_group_size", quant_group_size, (64, 128))
    stride, width = kv_compress_cache.stride(0), row_width(x.shape[1], quant_mode, quant_group_size)
    if layout == 2 and quant_mode == _BY_POWER:
        must.ndim("kv_compress_cache", kv_compress_cache, 3, 4)
        scales = -(-(x.shape[1] - ROPE) // quant_group_size)
        width = kv_compress_cache.shape[1] * (x.shape[1] + ROPE + -(-scales // 8) * 8)
    expected = f"of at least {width} bytes from one to the next of its first dimension"
    inside = kv_compress_cache[:1].numel()
    must.hold(stride >= width and (layout != 1 or inside >= width), "kv_compress_cache", expected,
              min(stride, inside))  # fmt: skip


@ascend_op(
    "indexer_compress_epilog_v2(Tensor(a!) indexer_compress_cache, Tensor x, "
    "Tensor slot_mapping, int layout=2) -> ()"
)
def indexer_compress_epilog_v2(indexer_compress_cache, x, slot_mapping):
    """Quantizes each row of x to float8_e4m3fn, a float32 scale for each 128 elements, and writes it to the slot.

    A block of the cache (blocks, block, 1, D), of bytes, holds the 8-bit floats of all its tokens, then their scales.
    -1 writes nothing. Scales that would lie past the cache's end are left out (a cache of one token, to warm up).
    """
    rows = x.reshape(-1, x.shape[-1])
    values, scale = by_float(rows, torch.float8_e4m3fn)
    block, width = indexer_compress_cache.shape[1], rows.shape[1]
    slots = slot_mapping.flatten()
    parts = ((0, _bytes(values)), (block * width, _bytes(scale)))
    for offset, part in parts:
        if offset + block * part.shape[1] <= indexer_compress_cache[0].numel():
            target = _blocks(indexer_compress_cache, offset, block, part.shape[1])
            _pages.write(target, slots, part)


@indexer_compress_epilog_v2.meta
def _():
    return None


@indexer_compress_epilog_v2.check
def _(indexer_compress_cache, x, slot_mapping, layout):
    must.choice("layout", layout, (2,))
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 1, 8)
    must.dtype("slot_mapping", slot_mapping, torch.int32)
    rows = x.numel() // x.shape[-1]
    must.hold(slot_mapping.numel() == rows, "slot_mapping", f"of {rows} elements",
              slot_mapping.numel())  # fmt: skip
    must.dtype("indexer_compress_cache", indexer_compress_cache, torch.uint8)
    shape = (None, None, 1, None)
    must.shape("indexer_compress_cache", indexer_compress_cache, shape)
    least = x.shape[-1]
    must.hold(indexer_compress_cache.shape[-1] >= least, "indexer_compress_cache",
              f"of a last dimension of at least {least}", tuple(indexer_compress_cache.shape))  # fmt: skip
