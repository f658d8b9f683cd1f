"""Microscaling (MX) quantization: blocks of elements in 8 or 4 bits share a scale, which is a power of two.

A scale is a byte e that stands for 2^(e - 127), 255 for NaN (float8_e8m0fnu of the OCP MX specification). Upstream
writes scales in pairs: an axis of n blocks becomes ceil(n / 2), and a last dimension of 2 follows; the second scale of
an odd last pair is 0.

Three ways lead to a scale (`scale_alg`), as in CANN's kernels (ops-nn, quant/dynamic_mx_quant/op_kernel/arch35):
0: the exponent of the largest magnitude less that of the format's largest value; a block whose scale would fall below
   2^-126 becomes zeros;
1: the largest magnitude over the format's largest value, rounded up to a power of two (8-bit formats);
2: as 1 for 4-bit formats; for a limit of 6 or 7 (float4_e2m1) or 1.875 (float4_e1m2) it looks at the exponent and the
   first mantissa bits of the magnitude in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._shared import _formats

#: elements that share a scale, and scales that lie together
BLOCK, PAIR = 32, 2

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
FLOAT4 = ("float4_e2m1fn_x2", "float4_e1m2fn_x2")

#: the exponent of each format's largest value
_EMAX = {"float4_e2m1fn_x2": 2, "float4_e1m2fn_x2": 0, "float8_e4m3fn": 8, "float8_e5m2": 15}

#: limits for which algorithm 2 compares mantissas: what to add to bfloat16 bits so that a larger mantissa carries
_CARRY = {
    ("float4_e2m1fn_x2", 0.0): 0x3F,
    ("float4_e2m1fn_x2", 6.0): 0x3F,
    ("float4_e2m1fn_x2", 7.0): 0x1F,
    ("float4_e1m2fn_x2", 1.875): 0x0F,
}

_NAN = 255

#: the numbers that the native form takes
_ORDER, _MODES = (*FLOAT8, *FLOAT4), ("rint", "floor", "round")
_COARSE = (None, torch.float16, torch.float32)


def check(
    round_mode: str,
    dst_type: int,
    scale_alg: int | None = 0,
    algorithms: Mapping[str, tuple[int, ...]] | None = None,
    formats: tuple[str, ...] = (*FLOAT8, *FLOAT4),
) -> str:
    """The format, its rounding and its algorithm; returns the name of the format."""
    _formats.check("dst_type", dst_type, *formats)
    name = _formats.chosen(dst_type)
    must.choice(
        "round_mode", round_mode, ("rint", "floor", "round") if name in FLOAT4 else ("rint",)
    )
    allowed = (algorithms or {}).get(name, (0, 1) if name in FLOAT8 else (0,))
    must.choice("scale_alg", scale_alg, allowed)
    return name


def check_even(argument: str, x: torch.Tensor, name: str) -> None:
    """4-bit formats come two to a byte."""
    _formats.check_packing(argument, x, name)


def check_limit(
    argument: str, limit: float, name: str, low: float = 6.0, high: float = 12.0
) -> None:
    """The limit is 0 or within the range that the host code accepts."""
    fits = limit == 0 or low <= limit <= high
    must.hold(fits, argument, f"0 or from {low} to {high} for {name}", limit)


def pairs(size: int, block: int = BLOCK) -> int:
    """How many pairs of blocks cover a dimension."""
    return -(-size // (block * PAIR))


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int32)


def _from_bits(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int32).view(torch.float32)


def scales(
    top: torch.Tensor,
    name: str,
    algorithm: int = 0,
    limit: float = 0.0,
    least: float = 0.0,
    coarse: torch.dtype | None = None,
    keep_tiny: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For the largest magnitude of each block (fp32): the scale's byte in int32, and what to multiply by.

    `coarse` is the dtype of data whose magnitudes algorithm 2 first brings to bfloat16: float16 by rounding, float32
    by cutting off; None where it looks at every mantissa bit. `keep_tiny` multiplies by 2^127 where the byte is 0.
    """
    invalid = ~top.isfinite()
    if algorithm == 0 or (algorithm == 2 and (name, limit) in _CARRY):
        bits = _bits(top)
        if algorithm == 2:
            carry = _CARRY[name, limit]
            fine = (carry << 16) | 0xFFFF
            if coarse == torch.float16:
                bits, fine = _bits(top.to(torch.bfloat16).float()), carry << 16
            elif coarse == torch.float32:
                bits, fine = bits & ~0xFFFF, carry << 16
            small = (bits >> 23) < _EMAX[name]
            bits = torch.where(small, 0, bits + fine)
        byte = ((bits >> 23) - _EMAX[name]).clamp(min=0)
        byte = torch.where(invalid, _NAN, byte)
        factor = _from_bits(torch.where(byte == 254, 1 << 22, (254 - byte).clamp(min=0) << 23))
        # a byte of 0 stands for 2^-127, but most of the card's kernels then multiply by 0
        factor = torch.where((bits >> 23 == 0) if keep_tiny else (byte == 0), 0.0, factor)
    else:
        # the card multiplies by the reciprocal in fp32
        inverse = torch.tensor(1.0 / (limit or _formats.largest(name)), dtype=torch.float32)
        quotient = _bits(top.clamp(min=least) * inverse.to(top.device))
        byte, mantissa = quotient >> 23, quotient & 0x7FFFFF
        up = (byte > 0) & (byte < 254) & (mantissa > 0)
        if name in FLOAT8:
            up = up | ((byte == 0) & (mantissa > 1 << 22))
        byte = torch.where(invalid, _NAN, torch.where(top == 0, 0, byte + up.int()))
        factor = _from_bits((254 - byte).clamp(min=0) << 23)
        factor = torch.where(top == 0, 0.0, factor)
    return byte, torch.where(invalid, torch.nan, factor)


def encode(values: torch.Tensor, name: str, mode: str) -> torch.Tensor:
    """Rounds scaled values; those of a block whose scale is NaN become 0."""
    return _formats.encode(values.nan_to_num(nan=0.0), name, mode)


def blocks_of(x: torch.Tensor, block: int = BLOCK) -> torch.Tensor:
    """The last dimension in fp32 as (blocks, block), zeros filling up to whole pairs of blocks."""
    size, whole = x.shape[-1], pairs(x.shape[-1], block) * PAIR * block
    padded = torch.nn.functional.pad(x.float(), (0, whole - size))
    return padded.unflatten(-1, (whole // block, block))


def quantize(
    x: torch.Tensor,
    name: str,
    axis: int = -1,
    block: int = BLOCK,
    mode: str = "rint",
    algorithm: int = 0,
    limit: float = 0.0,
    least: float = 0.0,
    coarse: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y in the format (4-bit ones two to a byte along the last dimension), and the scales as bytes in pairs."""
    axis = axis % x.dim()
    moved = x.movedim(axis, -1)
    blocks = blocks_of(moved, block)
    byte, factor = scales(blocks.abs().amax(-1), name, algorithm, limit, least, coarse)
    values = (blocks * factor.unsqueeze(-1)).flatten(-2)[..., : moved.shape[-1]]
    scale = byte.to(torch.uint8).unflatten(-1, (-1, PAIR)).movedim(-2, axis)
    return encode(values.movedim(-1, axis), name, mode), scale.contiguous()


def native(
    x: torch.Tensor,
    name: str,
    axis: int = -1,
    block: int = BLOCK,
    mode: str = "rint",
    algorithm: int = 0,
    limit: float = 0.0,
    least: float = 0.0,
    coarse: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`quantize` in C++ (csrc/kernels/mx_quant.cpp), for float32, bfloat16 and float16."""
    y, scale = torch.ops.softnpu.mx_quant(
        x, axis % x.dim(), block, _ORDER.index(name), _MODES.index(mode), algorithm,
        _CARRY.get((name, limit), -1), 1.0 / (limit or _formats.largest(name)), least,
        _COARSE.index(coarse) if coarse in _COARSE else 0,
    )  # fmt: skip
    return (y if name in FLOAT4 else y.view(getattr(torch, name))), scale


def by_group(
    x: torch.Tensor,
    ends: torch.Tensor,
    packed: bool,
    name: str,
    run: Callable[..., tuple[torch.Tensor, torch.Tensor]] = quantize,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`quantize` along the first of two axes, where no block reaches past its group of rows.

    A group's scales begin at a pair of their own: that of its first row, plus one for each group before it, or with
    `packed` right behind the pairs of the group before. There are rows // 64 + groups pairs; unused ones are 0, and so
    are rows past the last group. `run` is `quantize` or `native`.
    """
    rows, span = x.shape[0], BLOCK * PAIR
    ends = ends.long()
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    taken = -(-(ends - starts) // span)
    order = torch.arange(ends.shape[0], device=x.device)
    first = taken.cumsum(0) - taken if packed else starts // span + order
    row = torch.arange(rows, device=x.device)
    group = torch.searchsorted(ends.contiguous(), row, right=True)
    inside = group < ends.shape[0]
    group = group.clamp(max=ends.shape[0] - 1)
    slots = rows // span + ends.shape[0]
    place = torch.where(inside, first[group] * span + row - starts[group], slots * span)
    spaced = x.new_zeros(slots * span + 1, x.shape[1]).index_copy(0, place, x)
    y, scale = run(spaced[:-1], name, axis=0, **options)
    blank = torch.zeros_like(y[:1].view(torch.uint8))
    stored = torch.cat((y.view(torch.uint8), blank)).index_select(0, place).view(y.dtype)
    return stored, scale
