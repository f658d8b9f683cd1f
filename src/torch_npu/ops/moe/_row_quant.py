"""How `npu_moe_init_routing_v2` quantizes the expanded rows, one function a family of modes.

A mode maps rows in float32 to the stored rows and their scales. Rows of zeros get the scale 0.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from torch_npu.ops._shared import _formats
from torch_npu.ops._shared._packing import pack_int4
from torch_npu.ops._shared._rounding import saturate

NONE, STATIC, DYNAMIC, INT4, HIF8_CAST, HIF8_TENSOR, HIF8_TOKEN, MXFP4 = -1, 0, 1, 13, 6, 7, 8, 9
E5M2, E4M3 = torch.float8_e5m2, torch.float8_e4m3fn
#: scale 2**e for 32 columns; the second pair clamps the block's largest value from below
MXFP8 = {2: E5M2, 3: E4M3, 16: E5M2, 17: E4M3}
#: scale 2**e, kept in float32, for 128 columns
GROUPED = {4: E5M2, 5: E4M3, 14: E5M2, 15: E4M3}
#: scale max / largest for 128 columns
BLOCKED = {11: E5M2, 12: E4M3}
CLAMPED = (14, 15, 16, 17)
SMALLEST_AMAX = 1e-4

MODES = (NONE, STATIC, DYNAMIC, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17)


def _blocks(rows: torch.Tensor, width: int) -> torch.Tensor:
    """(R, H) as (R, blocks, width), the last block filled up with zeros."""
    missing = -rows.size(1) % width
    return functional.pad(rows, (0, missing)).reshape(rows.size(0), -1, width)


def _join(blocks: torch.Tensor, columns: int) -> torch.Tensor:
    return blocks.flatten(1)[:, :columns]


def _divided(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """rows / scale, and 0 where the scale is 0."""
    return torch.where(scale == 0, 0.0, rows / scale)


def _even(scales: torch.Tensor) -> torch.Tensor:
    """Scales of a row filled up to an even number, with zeros."""
    return functional.pad(scales, (0, scales.size(1) % 2))


def _exponent(x: torch.Tensor, up: bool) -> torch.Tensor:
    """floor(log2 x), or with `up` ceil(log2 x), exactly, for positive x; int32."""
    fraction, exponent = torch.frexp(x)  # x = fraction * 2**exponent, fraction in [0.5, 1)
    return exponent - 1 + ((fraction > 0.5) & up).int()


def _e8m0(exponent: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """2**exponent as float8_e8m0fnu, byte 0 where `zero`."""
    byte = torch.where(zero, 0, (exponent + 127).clamp(0, 254)).to(torch.uint8)
    return byte.view(torch.float8_e8m0fnu)


def _dynamic(rows: torch.Tensor, top: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows divided by their largest magnitude / top, and that scale."""
    if rows.size(1) == 0:
        return rows, rows.sum(1)
    scale = rows.abs().amax(1, keepdim=True) / top
    return _divided(rows, scale), scale.squeeze(1)


def _round_scaled(rows, dtype, width, clamp, half):
    """Rows divided by the powers of two that bring each block into range, and the exponents."""
    top = torch.finfo(dtype).max
    blocks = _blocks(rows, width)
    size = blocks.abs()
    if half:  # the device reads the magnitudes of float16 rows through truncated bfloat16
        size = (size.view(torch.int32) & -65536).view(torch.float32)
    amax = size.amax(-1)
    if clamp:
        amax = amax.clamp(min=SMALLEST_AMAX)
    exponent = _exponent(amax / top, up=True).clamp(min=-126)
    zero = amax == 0
    scaled = torch.where(zero.unsqueeze(-1), 0.0, torch.ldexp(blocks, -exponent.unsqueeze(-1)))
    return saturate(_join(scaled, rows.size(1)), dtype), exponent, zero


def quantize(
    rows: torch.Tensor,
    mode: int,
    scale: torch.Tensor | None,
    offset: torch.Tensor | None,
    half: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The stored rows and their scales (None where the mode has none) for rows in float32.

    `scale` is what multiplies: one value (static, HiFloat8 per tensor), one row or a row
    for each of smoothing factors (dynamic). `half` tells that the rows came as float16.
    """
    columns = rows.size(1)
    if mode == STATIC:
        assert scale is not None and offset is not None
        return saturate(rows * scale + offset, torch.int8), None
    if mode in (DYNAMIC, INT4):
        smooth = rows if scale is None else rows * scale
        if mode == DYNAMIC:
            scaled, found = _dynamic(smooth, 127.0)
            return saturate(scaled, torch.int8), found
        scaled, found = _dynamic(smooth, 7.0)
        return pack_int4(saturate(scaled, torch.quint4x2), torch.uint8), found
    if mode in (HIF8_CAST, HIF8_TENSOR):
        return _formats.encode(rows if scale is None else rows * scale, "hifloat8"), None
    if mode == HIF8_TOKEN:
        scaled, found = _dynamic(rows, _formats.largest("hifloat8"))
        return _formats.encode(scaled, "hifloat8"), found
    if mode in MXFP8:
        stored, exponent, zero = _round_scaled(rows, MXFP8[mode], 32, mode in CLAMPED, half)
        return stored, _even(_e8m0(exponent, zero).view(torch.uint8)).view(torch.float8_e8m0fnu)
    if mode in GROUPED:
        stored, exponent, zero = _round_scaled(rows, GROUPED[mode], 128, mode in CLAMPED, False)
        one = torch.ones_like(exponent, dtype=torch.float32)
        return stored, torch.where(zero, 0.0, torch.ldexp(one, exponent))
    if mode == MXFP4:
        blocks = _blocks(rows, 32)
        amax = blocks.abs().amax(-1)
        exponent, zero = (_exponent(amax, up=False) - 2).clamp(min=-127), amax == 0
        scaled = torch.where(zero.unsqueeze(-1), 0.0, torch.ldexp(blocks, -exponent.unsqueeze(-1)))
        stored = _formats.encode(_join(scaled, columns), "float4_e2m1fn_x2").view(torch.uint8)
        bytes_ = _even(_e8m0(exponent, zero).view(torch.uint8))
        return stored, bytes_.view(torch.float8_e8m0fnu).reshape(rows.size(0), -1, 2)
    dtype = BLOCKED[mode]
    blocks = _blocks(rows, 128)
    found = blocks.abs().amax(-1) / torch.finfo(dtype).max
    found = torch.where(found < torch.finfo(torch.float32).tiny, 0.0, found)
    stored = saturate(_join(_divided(blocks, found.unsqueeze(-1)), columns), dtype)
    return stored, _even(found).reshape(rows.size(0), -1, 2)
