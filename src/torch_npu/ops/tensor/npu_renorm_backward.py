"""npu_renorm_backward: the gradient of torch.renorm."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_renorm_backward(Tensor grad, Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor"
)
def npu_renorm_backward(grad, self, p, dim, maxnorm):
    r"""Gradient of `torch.renorm`, which scales slices of a p-norm above `maxnorm` down to it.

    $$ dx = \frac{m}{\|x\|} \left(dy - \frac{1}{\|x\|}
       \frac{\partial \|x\|_p}{\partial x} \sum x\, dy\right) $$

    for slices whose norm exceeds m, and dy for the others; the norm in denominators is increased by
    1e-7.

    Args:
        grad: dy, with the shape of `self`.
        self: x, at least 2 dimensions.
        p: the norm, positive.
        dim: the dimension of the slices.
        maxnorm: m, not negative.

    Returns:
        dx, with the shape and dtype of `grad`.
    """
    x, dy = wide(self), wide(grad)
    dims = [d for d in range(x.dim()) if d != dim % x.dim()]
    norm = torch.linalg.vector_norm(x, p, dims, keepdim=True)
    weight = (x * dy).sum(dims, keepdim=True)
    inverse = 1 / (norm + 1e-7)
    scaled = maxnorm * inverse * (dy - inverse * _norm_slope(x, norm, float(p), dims) * weight)
    return torch.where(norm > maxnorm, scaled, dy).to(grad.dtype)


def _norm_slope(x, norm, p, dims):
    if p == 1:
        return x.sgn()
    if p == float("inf"):
        largest = (x.abs() == norm) | x.isnan()
        return x.sgn() * largest / largest.sum(dims, keepdim=True)
    power = x.sgn() * x.abs().pow(p - 1) / norm.pow(p - 1)
    return power.masked_fill((norm == 0) | ((x == 0) & (p < 1)), 0)


@npu_renorm_backward.check
def _(grad, self, p, dim, maxnorm):
    rank = self.dim()
    must.ndim("self", self, 2, 8)
    must.shape("grad", grad, tuple(self.shape))
    must.hold(-rank <= dim < rank, "dim", f"in [{-rank}, {rank - 1}]", dim)
    must.hold(p > 0, "p", "positive", p)
    must.hold(maxnorm >= 0, "maxnorm", "not negative", maxnorm)


npu_renorm_backward.samples = [
    Sample(lambda make: (make(4, 8), make(4, 8, low=-2, high=2), 2.0, 0, 1.0)),
    Sample(lambda make: (make(4, 3, 2), make(4, 3, 2, low=-2, high=2), 1, 1, 1)),
]
