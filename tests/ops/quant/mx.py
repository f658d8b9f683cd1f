"""Microscaling formats number by number: grids of values, exponents by frexp, rounding by search. No torch inside."""

from __future__ import annotations

import bisect
import math

import numpy as np
import torch

E4M3, E5M2, E2M1, E1M2 = 292, 291, 296, 297


def _minifloats(exponent_bits, mantissa_bits, bias, count):
    values = []
    for code in range(count):
        exponent, mantissa = code >> mantissa_bits, code % (1 << mantissa_bits)
        fraction = mantissa / (1 << mantissa_bits) + (1 if exponent else 0)
        values.append(fraction * 2.0 ** (max(exponent, 1) - bias))
    return values


#: the magnitudes of each format by code
GRID = {
    E4M3: _minifloats(4, 3, 7, 127),
    E5M2: _minifloats(5, 2, 15, 124),
    E2M1: _minifloats(2, 1, 1, 8),
    E1M2: [c / 4 for c in range(8)],
}
EMAX = {E4M3: 8, E5M2: 15, E2M1: 2, E1M2: 0}


def rounded(value, dst, mode="rint"):
    """The value of the format for a float."""
    grid, size = GRID[dst], abs(value)
    below = bisect.bisect_right(grid, size) - 1
    if below == len(grid) - 1 or grid[below] == size:
        return math.copysign(grid[below], value)
    down, up = size - grid[below], grid[below + 1] - size
    raised = {
        "rint": up < down or (up == down and below % 2 == 1),
        "round": up <= down,
        "floor": value < 0,
    }[mode]
    return math.copysign(grid[below + raised], value)


def scale_byte(top, dst, alg=0, limit=0.0, least=0.0):
    """The byte of the scale of a block whose largest magnitude is `top`."""
    if not math.isfinite(top):
        return 255
    if top == 0:
        return 0
    exponent = math.frexp(top)[1] - 1
    if alg == 0:
        return max(exponent + 127 - EMAX[dst], 0)
    if alg == 2 and (limit in (0.0, 6.0, 7.0) and dst == E2M1 or limit == 1.875):
        if exponent + 127 < EMAX[dst]:
            return 0
        threshold = {0.0: 1.5, 6.0: 1.5, 7.0: 1.75, 1.875: 1.875}[limit]
        return max(exponent + 127 - EMAX[dst] + (top / 2.0**exponent > threshold), 0)
    inverse = np.float32(1 / (limit or GRID[dst][-1]))
    quotient = float(np.float32(max(top, least)) * inverse)
    return max(math.ceil(math.log2(quotient)) + 127, 0)


def block(numbers, dst, mode="rint", alg=0, limit=0.0, least=0.0, seen=None, tiny=False):
    """(byte, quantized values) of one block; `seen` maps the largest magnitude to what algorithm 2 looks at."""
    top = math.nan if any(math.isnan(n) for n in numbers) else max(map(abs, numbers), default=0.0)
    byte = scale_byte(seen(top) if seen else top, dst, alg, limit, least)
    if byte == 255 or top == 0 or (byte == 0 and alg in (0, 2) and not tiny):
        return byte, [0.0] * len(numbers)
    return byte, [rounded(n * 2.0 ** (127 - byte), dst, mode) for n in numbers]


def quantize(x, dst, axis=-1, size=32, **options):
    """(values, bytes) of a whole array along an axis: bytes in pairs, as upstream lays them out."""
    moved = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    count = -(-moved.shape[-1] // size)
    values = np.zeros(moved.shape)
    bytes_ = np.zeros((*moved.shape[:-1], -(-count // 2) * 2), np.uint8)
    for place in np.ndindex(*moved.shape[:-1]):
        for b in range(count):
            part = slice(b * size, (b + 1) * size)
            byte, values[(*place, part)] = block(moved[(*place, part)].tolist(), dst, **options)
            bytes_[(*place, b)] = byte
    paired = bytes_.reshape(*bytes_.shape[:-1], -1, 2)
    return np.moveaxis(values, -1, axis), np.moveaxis(paired, -2, axis if axis >= 0 else axis - 1)


def decode(y, dst):
    """The values of a stored tensor, by the grid."""
    codes = y.cpu().view(torch.uint8).numpy()
    if dst in (E2M1, E1M2):
        codes = np.stack((codes & 15, codes >> 4), -1).reshape(*codes.shape[:-1], -1)
        sign, codes = codes >> 3, codes & 7
    else:
        sign, codes = codes >> 7, codes & 127
    return np.where(sign, -1.0, 1.0) * np.asarray(GRID[dst])[codes]


def same(y, scale, want, dst):
    """Values and scale bytes equal the reference."""
    values, bytes_ = want
    assert scale.dtype == torch.uint8 and scale.is_contiguous() and y.is_contiguous()
    np.testing.assert_array_equal(scale.cpu().numpy(), bytes_)
    np.testing.assert_array_equal(decode(y, dst), values)


def spread(*shape, dtype=torch.bfloat16, seed=0, low=-20, high=12):
    """Numbers of many magnitudes, with zeros, on the device."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=g) * 2.0 ** torch.randint(low, high, shape, generator=g)
    x[torch.rand(shape, generator=g) < 0.05] = 0.0
    return x.to(dtype).npu()


def f64(x):
    return x.detach().cpu().double().numpy()
