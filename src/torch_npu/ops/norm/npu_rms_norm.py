"""npu_rms_norm and npu_rms_norm_backward: root-mean-square normalization."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits, floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import SUM, Sharding


def _normalized_dims(x: torch.Tensor, gamma: torch.Tensor) -> tuple[int, ...]:
    return tuple(range(x.dim() - gamma.dim(), x.dim()))


def _stepwise(x: torch.Tensor) -> bool:
    """Ascend910A rounds x / rms(x) of float16 before gamma (rms_norm_whole_reduce_sum.h)."""
    return x.dtype == torch.float16 and chips.current().family == "910A"


@npu_op(
    "npu_rms_norm(Tensor self, Tensor gamma, float epsilon=1e-06) -> (Tensor, Tensor)",
    compiled="fuse",
    output_differentiability=(True, False),
)
def npu_rms_norm(self, gamma, epsilon):
    r"""Root-mean-square normalization over the trailing dimensions that `gamma` covers.

    $$ y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot \gamma $$

    Args:
        self: the input x, 1 to 8 dimensions; float16, bfloat16 or float32.
        gamma: the scale, of shape `self.shape[n:]`; the dtype of `self`, or float32.
        epsilon: added to the mean square.

    Returns:
        y with the shape and dtype of `self`, and rstd = 1 / rms in float32, of shape
        `self.shape[:n]` followed by ones for the normalized dimensions.
    """
    x = wide(self)
    rstd = torch.rsqrt(x.square().mean(_normalized_dims(self, gamma), keepdim=True) + epsilon)
    normed = x * rstd
    if _stepwise(self):
        normed = wide(normed.to(self.dtype))
    return (normed * wide(gamma)).to(self.dtype), rstd


@npu_rms_norm.check
def _(self, gamma):
    must.dtype("self", self, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("self", self, 1, 8)
    must.dtype("gamma", gamma, self.dtype, torch.float32)
    must.ndim("gamma", gamma, 1, self.dim())
    must.shape("gamma", gamma, tuple(self.shape[self.dim() - gamma.dim() :]))


@npu_rms_norm.native
def _(self, gamma, epsilon):
    if not floats(self, gamma):
        return NotImplemented
    return torch.ops.softnpu.rms_norm(self, None, gamma, epsilon, stepwise=_stepwise(self))[:2]


@npu_rms_norm.backward
def _(dy, *, self, gamma, result1):
    dx, dgamma = torch.ops.npu.npu_rms_norm_backward(dy, self, gamma, result1)
    return {"self": dx, "gamma": dgamma.to(gamma.dtype)}


@npu_rms_norm.sharding
def _(self, gamma):
    for dim in range(self.ndim - gamma.ndim):
        yield Sharding((dim, dim), {"self": dim})


npu_rms_norm.samples = [
    Sample(lambda make: (make(4, 3, 32), make(32))),
    Sample(lambda make: (make(2, 3, 8), make(3, 8)), {"epsilon": 1e-5}),
    Sample(lambda make: (make(4, 64, dtype=torch.bfloat16), make(64))),
]


@npu_op(
    "npu_rms_norm_backward(Tensor dy, Tensor self, Tensor gamma, Tensor rstd) -> (Tensor, Tensor)",
    compiled="fuse",
    ge="RmsNormGrad",
)
def npu_rms_norm_backward(dy, self, gamma, rstd):
    """Gradients of `npu_rms_norm` with respect to `self` (its dtype) and `gamma` (float32)."""
    dims = _normalized_dims(self, gamma)
    batch = tuple(range(self.dim() - gamma.dim()))
    normed = wide(self) * rstd
    scaled = wide(dy) * wide(gamma)
    dx = rstd * (scaled - normed * (scaled * normed).mean(dims, keepdim=True))
    dgamma = wide(dy) * normed
    return dx.to(self.dtype), dgamma.sum(batch) if batch else dgamma


@npu_rms_norm_backward.check
def _(dy, self, gamma, rstd):
    must.same_dtype("dy", dy, "self", self)
    must.shape("dy", dy, tuple(self.shape))
    must.shape("gamma", gamma, tuple(self.shape[self.dim() - gamma.dim() :]))
    rows = self.shape[: self.dim() - gamma.dim()].numel()
    fits = rstd.numel() == rows
    must.hold(fits, "rstd", f"of {rows} elements, one a row", tuple(rstd.shape), ErrCode.PARAM)


@npu_rms_norm_backward.native
def _(dy, self, gamma, rstd):
    if not fits(self, dy) or not floats(gamma, rstd):
        return NotImplemented
    return torch.ops.softnpu.rms_norm_backward(dy, self, gamma, rstd)


@npu_rms_norm_backward.sharding
def _(self, gamma):
    for dim in range(self.ndim - gamma.ndim):
        yield Sharding((dim, SUM), {"dy": dim, "self": dim, "rstd": dim})


npu_rms_norm_backward.samples = [
    Sample(lambda make: (make(4, 3, 32), make(4, 3, 32), make(32), make(4, 3, 1, low=1, high=2)))
]
