"""npu_add_rms_norm_v2 and npu_add_rms_norm_v2_functional: npu_add_rms_norm over its own inputs."""

from __future__ import annotations

from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._rms import add_rms_norm, check_addends, native_add_rms_norm, roundings


@npu_op(
    "npu_add_rms_norm_v2(Tensor(a!) x1, Tensor(b!) x2, Tensor gamma, float epsilon=1e-06) -> Tensor",
    functional="npu_add_rms_norm_v2_functional(Tensor x1, Tensor x2, Tensor gamma, float epsilon=1e-06)"
    " -> (Tensor, Tensor, Tensor)",
)
def npu_add_rms_norm_v2(x1, x2, gamma, epsilon):
    r"""Normalizes x1 + x2 as `npu_add_rms_norm`, over the inputs: x1 becomes y and x2 the sum.

    $$ x_2 \leftarrow x_1 + x_2, \qquad
       x_1 \leftarrow \frac{x_2}{\sqrt{\mathrm{mean}(x_2^2) + \epsilon}} \cdot \gamma $$

    Args:
        x1, x2: 1 to 8 dimensions, alike; float16, float32, and bfloat16 but on Atlas inference
            series. Written in place.
        gamma: the scale, of shape `x1.shape[n:]` and the dtype of `x1`.
        epsilon: added to the mean square.

    Returns:
        rstd = 1 / rms in float32, of shape `x1.shape[:n]` followed by ones.
    """
    y, rstd, x = add_rms_norm(x1, x2, gamma, epsilon, roundings(x1.dtype))
    x1.copy_(y)
    x2.copy_(x)
    return rstd


@npu_add_rms_norm_v2.check
def _(x1, x2, gamma):
    check_addends(x1, x2, gamma)


@npu_add_rms_norm_v2.native
def _(x1, x2, gamma, epsilon):
    if not fits(x1, x2, gamma):
        return NotImplemented
    y, rstd, x = native_add_rms_norm(x1, x2, gamma, epsilon, roundings(x1.dtype))
    x1.copy_(y)
    x2.copy_(x)
    return rstd


npu_add_rms_norm_v2.samples = [
    Sample(lambda make: (make(4, 3, 32), make(4, 3, 32, low=0), make(32))),
    Sample(lambda make: (make(2, 3, 8), make(2, 3, 8, low=0), make(3, 8)), {"epsilon": 1e-5}),
]
