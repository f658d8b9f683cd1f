"""The low-precision formats by name (`torch_npu._dtypes.name`): their largest value, values to bits, bits to values.

| format | stored in | rounding |
|---|---|---|
| int8, uint8, int32 | themselves | half to even, saturating, NaN to 0 |
| int4 | int32, eight to a word | the same |
| float8_e4m3fn, float8_e5m2 | themselves | nearest even, saturating, NaN kept |
| hifloat8 | uint8 | nearest, halves away from zero, saturating, NaN kept |
| float4_e2m1fn_x2, float4_e1m2fn_x2 | uint8, two to a byte | nearest even, saturating, NaN to 0 |
"""

from __future__ import annotations

import functools
import math

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _packing, _rounding

_INTEGERS = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int4": torch.quint4x2,
}

_FLOAT8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}

#: the eight magnitudes of the 4-bit floats, by code
_FLOAT4 = {
    "float4_e2m1fn_x2": (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
    "float4_e1m2fn_x2": (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75),
}

_HIFLOAT8_NAN, _HIFLOAT8_INF = 0x80, 0x6F


@functools.cache
def hifloat8_values() -> tuple[float, ...]:
    """The value of each of the 256 bytes.

    After the sign, a prefix tells how many exponent bits follow (11: 4, 10: 3, 01: 2, 001: 1, 0001: 0, 0000:
    none, a power of two), the rest is mantissa. The exponent is a sign and a magnitude with a hidden leading one.
    """
    return tuple(_hifloat8_value(byte) for byte in range(256))


def _hifloat8_value(byte: int) -> float:
    sign, body = (-1.0 if byte & 0x80 else 1.0), byte & 0x7F
    if body == 0:
        return math.nan if byte & 0x80 else 0.0
    if body == _HIFLOAT8_INF:
        return sign * math.inf
    if body < 8:
        return sign * 2.0 ** (body - 23)
    width, low = next(
        (w, low)
        for w, low in ((4, 0x60), (3, 0x40), (2, 0x20), (1, 0x10), (0, 0x08))
        if body >= low
    )
    rest = {4: 5, 3: 5, 2: 5, 1: 4, 0: 3}[width]  # bits after the prefix
    field = body - low
    fraction_bits = rest - width
    fraction = 1 + (field % (1 << fraction_bits)) / (1 << fraction_bits)
    exponent = field >> fraction_bits
    if width == 0:
        return sign * fraction
    magnitude = (1 << (width - 1)) | (exponent & ((1 << (width - 1)) - 1))
    return sign * fraction * 2.0 ** (-magnitude if exponent >> (width - 1) else magnitude)


@functools.cache
def _hifloat8_grid() -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The finite magnitudes in ascending order, and their bytes."""
    values = hifloat8_values()
    pairs = sorted((values[b], b) for b in range(0x80) if b != _HIFLOAT8_INF)
    return tuple(v for v, _ in pairs), tuple(b for _, b in pairs)


def largest(name: str) -> float:
    """The largest finite value of a format: what dynamic quantization divides by."""
    if name == "hifloat8":
        return _hifloat8_grid()[0][-1]
    if name in _FLOAT4:
        return _FLOAT4[name][-1]
    return _rounding.largest(_INTEGERS.get(name) or _FLOAT8[name])


def smallest(name: str) -> float:
    """The smallest finite value of a format."""
    return float(_rounding.RANGES[_INTEGERS[name]][0]) if name in _INTEGERS else -largest(name)


def per_item(name: str) -> int:
    """How many values one element of the stored tensor carries."""
    return _packing.PER_WORD if name == "int4" else 2 if name in _FLOAT4 else 1


def encode(x: torch.Tensor, name: str, mode: str = "rint") -> torch.Tensor:
    """Rounds, saturates and packs a floating tensor; the last dimension shrinks by `per_item(name)`.

    The result is contiguous, whatever the strides of `x`.
    """
    x = x.contiguous()
    if name in _INTEGERS:
        values = _rounding.saturate(x, _INTEGERS[name], mode)
        return _packing.pack_int4(values) if name == "int4" else values
    if name in _FLOAT8:
        return _rounding.saturate(x, _FLOAT8[name])
    if name == "hifloat8":
        return _encode_hifloat8(x)
    return _encode_float4(x, name, mode)


def decode(x: torch.Tensor, name: str) -> torch.Tensor:
    """The float32 values of a stored tensor."""
    if name == "int4":
        return _packing.unpack_int4(x).float()
    if name == "hifloat8":
        return torch.tensor(hifloat8_values(), device=x.device)[x.long()]
    if name in _FLOAT4:
        table = (*_FLOAT4[name], *(-v for v in _FLOAT4[name]))
        codes = torch.stack((x & 0xF, x >> 4), dim=-1).flatten(-2)
        return torch.tensor(table, device=x.device)[codes.long()]
    return x.float()


def _nearest(x: torch.Tensor, grid: torch.Tensor, mode: str) -> torch.Tensor:
    """The index of the grid's magnitude that stands for |x| in the rounding mode."""
    size = x.abs()
    below = (torch.searchsorted(grid, size, right=True) - 1).clamp(max=grid.numel() - 1)
    above = (below + 1).clamp(max=grid.numel() - 1)
    down, up = size - grid[below], grid[above] - size
    exact = down <= 0
    if mode == "trunc":
        raised = torch.zeros_like(exact)
    elif mode in ("floor", "ceil"):
        raised = ~exact & ((x < 0) if mode == "floor" else (x > 0))
    elif mode == "round":
        raised = up <= down
    else:
        raised = (up < down) | ((up == down) & (below % 2 == 1))
    return torch.where(raised & (above > below), above, below)


def _encode_hifloat8(x: torch.Tensor) -> torch.Tensor:
    magnitudes, codes = _hifloat8_grid()
    grid = torch.tensor(magnitudes, device=x.device)
    x = x.float()
    index = _nearest(x.nan_to_num(nan=0.0), grid, "round")
    byte = torch.tensor(codes, device=x.device)[index]
    byte = torch.where((x < 0) & (byte > 0), byte + 0x80, byte)
    return torch.where(x.isnan(), _HIFLOAT8_NAN, byte).to(torch.uint8)


def _encode_float4(x: torch.Tensor, name: str, mode: str) -> torch.Tensor:
    x = x.float().nan_to_num(nan=0.0)
    code = _nearest(x, torch.tensor(_FLOAT4[name], device=x.device), mode)
    code = torch.where(torch.signbit(x), code + 8, code)
    return _packing.pack_int4(code, torch.uint8)


def chosen(code: int | torch.dtype | None, default: str = "int8") -> str:
    """The name of the format that an argument asks for; `check` has seen that it is one."""
    return (None if code is None else _dtypes.name(code)) or default


def check(argument: str, code: int | torch.dtype | None, *allowed: str, upstream: str = "") -> None:
    """The argument (if given) names one of the formats."""
    known = code is None or _dtypes.name(code) in allowed
    expected = f"the type {must.one_of(allowed)}"
    must.hold(known, argument, expected, _dtypes.text(code), ErrCode.TYPE, upstream)


def check_packing(argument: str, x: torch.Tensor, name: str) -> None:
    """The last dimension fills whole elements of the packed output."""
    count = per_item(name)
    if count > 1:
        fits = x.dim() > 0 and x.shape[-1] % count == 0
        expected = f"of a last dimension divisible by {count}, for {name} output"
        must.hold(fits, argument, expected, tuple(x.shape), ErrCode.PARAM)
