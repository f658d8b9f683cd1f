"""npu_add_rms_norm: a residual addition fused with root-mean-square normalization."""

from __future__ import annotations

import torch

from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import Sharding
from torch_npu.ops._shared._rms import add_rms_norm, check_addends, native_add_rms_norm, roundings


@npu_op(
    "npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06)"
    " -> (Tensor, Tensor, Tensor)",
    compiled="fuse",
)
def npu_add_rms_norm(x1, x2, gamma, epsilon):
    r"""Adds x1 and x2 and normalizes the sum over the trailing dimensions that `gamma` covers.

    $$ x = x_1 + x_2, \qquad y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot \gamma $$

    Args:
        x1: 1 to 8 dimensions; float16, float32, and bfloat16 but on Atlas inference series.
        x2: the shape and dtype of `x1`.
        gamma: the scale, of shape `x1.shape[n:]` and the dtype of `x1`.
        epsilon: added to the mean square.

    Returns:
        y with the shape and dtype of `x1`; rstd = 1 / rms in float32, of shape `x1.shape[:n]`
        followed by ones; x, the sum, with the shape and dtype of `x1`. On A2 and A3, float16 sums are
        rounded before the norm, bfloat16 ones are not, and both round x / rms before gamma.

    As upstream, the operator has no derivative: backward raises.

    Differs from upstream: empty tensors, which the page excludes, are accepted; rstd holds on Atlas
    inference series too, where upstream leaves it undefined.
    """
    y, rstd, x = add_rms_norm(x1, x2, gamma, epsilon, roundings(x1.dtype))
    return y.to(x1.dtype), rstd, x


@npu_add_rms_norm.check
def _(x1, x2, gamma):
    check_addends(x1, x2, gamma)


@npu_add_rms_norm.native
def _(x1, x2, gamma, epsilon):
    if not fits(x1, x2, gamma):
        return NotImplemented
    return native_add_rms_norm(x1, x2, gamma, epsilon, roundings(x1.dtype))


@npu_add_rms_norm.backward
def _(*grads):
    raise NotImplementedError("derivative for 'npu::npu_add_rms_norm' is not implemented")


@npu_add_rms_norm.sharding
def _(x1, gamma):
    for dim in range(x1.ndim - gamma.ndim):
        yield Sharding((dim, dim, dim), {"x1": dim, "x2": dim})


npu_add_rms_norm.samples = [
    Sample(lambda make: (make(4, 3, 32), make(4, 3, 32, low=0), make(32))),
    Sample(lambda make: (make(2, 3, 8), make(2, 3, 8), make(3, 8)), {"epsilon": 1e-5}),
    Sample(lambda make: tuple(make(*s, dtype=torch.bfloat16) for s in ((4, 64), (4, 64), (64,)))),
]
