"""npu_fast_gelu and npu_fast_gelu_backward: GELU with a sigmoid in place of the normal CDF."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import elementwise
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops._shared._sigmoid import FAST_GELU, swish, swish_slope


@npu_op("npu_fast_gelu(Tensor self) -> Tensor", compiled="fuse")
def npu_fast_gelu(self):
    r"""The fast GELU of each element; it differs from the `gelu` of PyTorch by up to 0.02.

    $$ \mathrm{fast\_gelu}(x) = \frac{x}{1 + e^{-1.702 x}} $$

    The Atlas training and inference series compute the same function as
    $\frac{x}{1 + e^{-1.702 |x|}} e^{0.851 (x - |x|)}$.

    Args:
        self: up to 8 dimensions; float16, float32, and bfloat16 but on Atlas training and inference
            series.

    Returns:
        The result, with the shape and dtype of `self`.

    Differs from upstream: the page multiplies the second form's exponent by x, which would diverge
    for negative x; upstream's tests and operator agree with the form above.
    """
    return swish(wide(self), FAST_GELU).to(self.dtype)


@npu_fast_gelu.check
def _(self):
    must.dtype("self", self, *vector_floats())
    must.ndim("self", self, 0, 8)


@npu_fast_gelu.native
def _(self):
    return torch.ops.softnpu.swish(self, FAST_GELU) if fits(self) else NotImplemented


@npu_fast_gelu.backward
def _(grad, *, self):
    return {"self": torch.ops.npu.npu_fast_gelu_backward(grad, self)}


@npu_fast_gelu.sharding
def _(self):
    yield from elementwise(self.ndim, "self")


npu_fast_gelu.samples = [
    Sample(lambda make: (make(4, 33, low=-4, high=4),)),
    Sample(lambda make: (make(2, 3, 5, dtype=torch.float16),)),
    Sample(lambda make: (make(8, dtype=torch.bfloat16),)),
]


@npu_op("npu_fast_gelu_backward(Tensor grad, Tensor self) -> Tensor", compiled="fuse")
def npu_fast_gelu_backward(grad, self):
    r"""Gradient of `npu_fast_gelu`.

    $$ dx = dy \cdot s (1 + 1.702 x (1 - s)), \quad s = \mathrm{sigmoid}(1.702 x) $$

    Args:
        grad: dy, with the shape and dtype of `self`.
        self: the forward's input.

    Returns:
        dx, with the shape and dtype of `self`.
    """
    return (wide(grad) * swish_slope(wide(self), FAST_GELU)).to(self.dtype)


@npu_fast_gelu_backward.check
def _(grad, self):
    must.dtype("self", self, *vector_floats())
    must.ndim("self", self, 0, 8)
    must.same_dtype("grad", grad, "self", self)
    must.shape("grad", grad, tuple(self.shape))


@npu_fast_gelu_backward.native
def _(grad, self):
    if not fits(grad, self):
        return NotImplemented
    return torch.ops.softnpu.swish_backward(grad, self, FAST_GELU)


@npu_fast_gelu_backward.sharding
def _(self):
    yield from elementwise(self.ndim, "grad", "self")


npu_fast_gelu_backward.samples = [
    Sample(lambda make: (make(4, 33), make(4, 33, low=-4, high=4))),
    Sample(lambda make: (make(7, dtype=torch.float16), make(7, dtype=torch.float16))),
]
