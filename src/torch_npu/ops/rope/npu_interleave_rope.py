"""npu_interleave_rope: the rotary embedding of DeepSeek's latent attention."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.rope._rotate import rotate

#: the only head size that A2 and A3 take
HEAD = 64


@npu_op("npu_interleave_rope(Tensor x, Tensor cos, Tensor sin) -> Tensor", compiled="fuse")
def npu_interleave_rope(x, cos, sin):
    r"""Sorts the last dimension, even positions before odd ones, and rotates it by halves.

    $$ q = (x_0, x_2, \ldots, x_1, x_3, \ldots), \qquad
       y = q \cdot \cos + (-q_{D/2:}, q_{:D/2}) \cdot \sin $$

    Args:
        x: of shape (B, N, S, D) with D = 64; float16 or bfloat16.
        cos: of shape (B, 1, S, 64) or (B, 1, 1, 64), in the dtype of `x`.
        sin: the shape and dtype of `cos`.

    Returns:
        y, with the shape and dtype of `x`.

    On Ascend950 D may be any even size and cos and sin any shape that broadcasts to `x`. As
    upstream, the operator has no derivative: backward raises.

    Differs from upstream: non-contiguous tensors, which the page excludes, are accepted.
    """
    return rotate(wide(x), wide(cos), wide(sin), "interleave-half").to(x.dtype)


@npu_interleave_rope.check
def _(x, cos, sin):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 4)
    must.same_dtype("cos", cos, "x", x)
    must.same_dtype("sin", sin, "x", x)
    must.ndim("cos", cos, 4)
    batch, heads, length, size = x.shape
    if chips.current().family == "A5":
        must.hold(size % 2 == 0, "x", "even in its last dimension", tuple(x.shape))
        allowed = ((1, batch), (1, heads), (1, length), (size,))
        must.hold(
            all(have in sizes for have, sizes in zip(cos.shape, allowed, strict=True)),
            "cos",
            f"of a shape that broadcasts to 'x' {tuple(x.shape)}",
            tuple(cos.shape),
        )
    else:
        must.shape("x", x, (None, None, None, HEAD))
        must.shape("cos", cos, (batch, 1, 1 if cos.shape[2] == 1 else length, HEAD))
    must.shape("sin", sin, tuple(cos.shape))


@npu_interleave_rope.native
def _(x, cos, sin):
    if not fits(x, cos, sin):
        return NotImplemented
    return torch.ops.softnpu.rotary(x, cos, sin, "interleave-half")


@npu_interleave_rope.backward
def _(*grads):
    raise NotImplementedError("derivative for 'npu::npu_interleave_rope' is not implemented")


npu_interleave_rope.samples = [
    Sample(
        lambda make: (
            make(3, 4, 1, 64, dtype=torch.float16),
            make(3, 1, 1, 64, dtype=torch.float16),
            make(3, 1, 1, 64, dtype=torch.float16),
        )
    ),
    Sample(
        lambda make: (
            make(2, 2, 3, 64, dtype=torch.bfloat16),
            make(2, 1, 3, 64, dtype=torch.bfloat16),
            make(2, 1, 3, 64, dtype=torch.bfloat16),
        )
    ),
]
