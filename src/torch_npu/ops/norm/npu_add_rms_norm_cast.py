"""npu_add_rms_norm_cast: npu_add_rms_norm whose result also comes in float32."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._rms import add_rms_norm, check_addends, native_add_rms_norm, roundings


@npu_op(
    "npu_add_rms_norm_cast(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    compiled="fuse",
)
def npu_add_rms_norm_cast(x1, x2, gamma, epsilon):
    r"""Adds x1 and x2, normalizes the sum, and gives the result twice: in float32 and rounded.

    $$ x = x_1 + x_2, \qquad y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot \gamma $$

    Args:
        x1: 1 to 8 dimensions; float16 or bfloat16.
        x2: the shape and dtype of `x1`.
        gamma: the scale, of shape `x1.shape[n:]` and the dtype of `x1`.
        epsilon: added to the mean square.

    Returns:
        y, rounded, in float32; y in the dtype of `x1`; rstd = 1 / rms in float32, of shape `x1.shape[:n]`
        followed by ones; x, the sum, with the dtype of `x1`.
    """
    y, rstd, x = add_rms_norm(x1, x2, gamma, epsilon, roundings(x1.dtype, cast=True))
    y = y.to(x1.dtype)
    return wide(y), y, rstd, x


@npu_add_rms_norm_cast.check
def _(x1, x2, gamma):
    must.dtype("x1", x1, torch.float16, torch.bfloat16)
    check_addends(x1, x2, gamma)


@npu_add_rms_norm_cast.native
def _(x1, x2, gamma, epsilon):
    if not fits(x1, x2, gamma):
        return NotImplemented
    places = roundings(x1.dtype, cast=True)
    y, rstd, x = native_add_rms_norm(x1, x2, gamma, epsilon, places)
    return y.float(), y, rstd, x


npu_add_rms_norm_cast.samples = [
    Sample(lambda make: tuple(make(*s, dtype=torch.float16) for s in ((4, 32), (4, 32), (32,)))),
    Sample(
        lambda make: tuple(make(*s, dtype=torch.bfloat16) for s in ((2, 3, 8), (2, 3, 8), (3, 8))),
        {"epsilon": 1e-5},
    ),
]
