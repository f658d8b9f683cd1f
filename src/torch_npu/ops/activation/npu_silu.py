"""npu_silu, npu_silu_ and npu_silu_backward: x * sigmoid(x)."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops._shared._sigmoid import swish


@npu_op("npu_silu(Tensor self) -> Tensor", compiled="fuse", aclop=True)
def npu_silu(self):
    r"""The sigmoid linear unit (Swish) of each element: $y = x \cdot \mathrm{sigmoid}(x)$.

    Args:
        self: x; float16, float32, and bfloat16 but on Atlas training and inference series.

    Returns:
        y, with the shape and dtype of `self`.
    """
    return swish(wide(self)).to(self.dtype)


@npu_silu.check
def _(self):
    must.dtype("self", self, *vector_floats())


@npu_silu.native
def _(self):
    return torch.ops.softnpu.swish(self, 1.0) if fits(self) else NotImplemented


@npu_silu.backward
def _(grad, *, self, result0):
    return {"self": torch.ops.npu.npu_silu_backward(grad, self, result0)}


npu_silu.samples = [
    Sample(lambda make: (make(4, 33, low=-6, high=6),)),
    Sample(lambda make: (make(2, 3, 5, dtype=torch.float16),)),
]


@npu_op("npu_silu_(Tensor(a!) self) -> Tensor(a!)", aclop=True)
def npu_silu_(self):
    """`npu_silu` written over its input, which is returned. Not differentiable, as upstream."""
    return self.copy_(swish(wide(self)))


@npu_silu_.check
def _(self):
    must.dtype("self", self, *vector_floats())


@npu_silu_.native
def _(self):
    if not fits(self):
        return NotImplemented
    torch.ops.softnpu.swish(self, 1.0, out=self)
    return self


npu_silu_.samples = [
    Sample(lambda make: (make(4, 9),)),
    Sample(lambda make: (make(3, 5, dtype=torch.float16),)),
]


@npu_op(
    "npu_silu_backward(Tensor grad_output, Tensor x0, Tensor x1) -> Tensor",
    compiled="fuse",
    aclop=True,
)
def npu_silu_backward(grad_output, x0, x1):
    r"""Gradient of `npu_silu` from the forward's input and result.

    $$ dx = dy \cdot (y + \mathrm{sigmoid}(x) (1 - y)) $$

    Args:
        grad_output: dy.
        x0: x, the forward's input; the shape and dtype of `grad_output`.
        x1: y, the forward's result; the shape and dtype of `grad_output`.

    Returns:
        dx, with the shape and dtype of `grad_output`.
    """
    y = wide(x1)
    slope = y + torch.sigmoid(wide(x0)) * (1 - y)
    return (wide(grad_output) * slope).to(grad_output.dtype)


@npu_silu_backward.check
def _(grad_output, x0, x1):
    must.dtype("grad_output", grad_output, *vector_floats())
    for name, tensor in (("x0", x0), ("x1", x1)):
        must.same_dtype(name, tensor, "grad_output", grad_output)
        must.shape(name, tensor, tuple(grad_output.shape))


@npu_silu_backward.native
def _(grad_output, x0, x1):
    if not fits(grad_output, x0, x1):
        return NotImplemented
    return torch.ops.softnpu.silu_backward(grad_output, x0, x1)


npu_silu_backward.samples = [
    Sample(lambda make: (make(4, 9), make(4, 9, low=-3, high=3), make(4, 9)))
]
