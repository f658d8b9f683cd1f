"""8-bit floats, hifloat8 and bytes of powers of two for products, with their values in fp64."""

from __future__ import annotations

import torch

from tests.ops.support import make

E8M0, HIFLOAT8 = 293, 290


def eights(*shape, dtype=torch.float8_e4m3fn, seed=0):
    """A tensor of 8-bit floats, and its values."""
    x = make(*shape, low=-4, high=4, seed=seed).to(dtype)
    return x, x.cpu().double()


def hifloats(*shape, seed=0):
    """Bytes of hifloat8 between 1 and 2: prefix 0001, three bits of fraction; every other one negative."""
    codes = make(*shape, dtype=torch.uint8, low=0, high=8, seed=seed)
    sign = make(*shape, dtype=torch.uint8, low=0, high=2, seed=seed + 1)
    x = codes + 8 + sign * 128
    return x, (1 + codes.cpu().double() / 8) * (1 - 2 * sign.cpu().double())


def powers(*shape, seed=0):
    """Bytes of scales, and the powers of two."""
    x = make(*shape, dtype=torch.uint8, low=122, high=132, seed=seed)
    return x, 2.0 ** (x.cpu().double() - 127)


def along_depth(scale, depth):
    """Powers (ceil(K / 64), X, 2) as (K, X)."""
    rows = [scale[k // 64, :, k // 32 % 2] for k in range(depth)]
    return torch.stack(rows)
