"""Rotary position embedding of a part of each head."""

from __future__ import annotations

import torch

from softnpu.contrib.kernels._definition import Definition
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.rope._rotate import MODES, rotate

__all__ = ["inplace_partial_rotary_mul"]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@Definition
def inplace_partial_rotary_mul(x, r1, r2, rotary_mode, partial_slice):
    """Rotates the elements from `partial_slice[0]` to `partial_slice[1]` of the last dimension, as npu_rotary_mul.

    r1 (cos) and r2 (sin) are of the dtype of x or float32; the rotation is calculated in float32.
    """
    start, end = partial_slice
    if end > start and x.numel():
        part = x[..., start:end]
        part.copy_(rotate(wide(part), wide(r1), wide(r2), rotary_mode))


@inplace_partial_rotary_mul.meta
def _(x):
    return None


@inplace_partial_rotary_mul.check
def _(x, r1, r2, rotary_mode, partial_slice):
    must.choice("rotary_mode", rotary_mode, MODES)
    must.dtype("x", x, *_FLOATS)
    must.ndim("x", x, 4)
    must.hold(len(partial_slice) == 2, "partial_slice", "two numbers", list(partial_slice))
    start, end = partial_slice
    inside = 0 <= start <= end <= x.shape[-1] and (end - start) % 2 == 0
    expected = f"an even range within the last dimension of 'x', {x.shape[-1]}"
    must.hold(inside, "partial_slice", expected, list(partial_slice))
    for name, tensor in (("r1", r1), ("r2", r2)):
        must.dtype(name, tensor, x.dtype, torch.float32)
        must.ndim(name, tensor, 4)
        sizes = (*x.shape[:-1], end - start)
        fits = tensor.shape[-1] == sizes[-1] and all(
            have in (1, want) for have, want in zip(tensor.shape, sizes, strict=True)
        )
        must.hold(fits, name, f"of a shape that broadcasts to {sizes}", tuple(tensor.shape))
    must.shape("r2", r2, tuple(r1.shape))
