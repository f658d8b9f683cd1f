"""npu_mish and npu_mish_backward: x * tanh(softplus(x))."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats


@npu_op("npu_mish(Tensor self) -> Tensor", compiled="fuse", aclop=True)
def npu_mish(self):
    r"""The Mish activation of each element: $y = x \tanh(\ln(1 + e^x))$.

    Args:
        self: x; float16, float32, and bfloat16 but on Atlas training and inference series.

    Returns:
        y, with the shape and dtype of `self`.
    """
    return torch.nn.functional.mish(wide(self)).to(self.dtype)


@npu_mish.check
def _(self):
    must.dtype("self", self, *vector_floats())


@npu_mish.native
def _(self):
    return torch.ops.softnpu.mish(self) if fits(self) else NotImplemented


@npu_mish.backward
def _(grad, *, self):
    return {"self": torch.ops.npu.npu_mish_backward(grad, self)}


npu_mish.samples = [
    Sample(lambda make: (make(4, 33, low=-6, high=6),)),
    Sample(lambda make: (make(2, 3, 5, dtype=torch.float16),)),
]


@npu_op("npu_mish_backward(Tensor grad, Tensor input) -> Tensor", compiled="fuse", aclop=True)
def npu_mish_backward(grad, input):
    r"""Gradient of `npu_mish`.

    $$ dx = dy \left(t + x \,\mathrm{sigmoid}(x) (1 - t^2)\right), \quad t = \tanh(\ln(1 + e^x)) $$

    Args:
        grad: dy, with the shape and dtype of `input`.
        input: x, the forward's input; float16 or float32.

    Returns:
        dx, with the shape and dtype of `input`.
    """
    x = wide(input)
    t = torch.tanh(torch.nn.functional.softplus(x))
    return (wide(grad) * (t + x * torch.sigmoid(x) * (1 - t.square()))).to(input.dtype)


@npu_mish_backward.check
def _(grad, input):
    must.dtype("input", input, *vector_floats())
    must.same_dtype("grad", grad, "input", input)
    must.shape("grad", grad, tuple(input.shape))


@npu_mish_backward.native
def _(grad, input):
    if not fits(grad, input):
        return NotImplemented
    return torch.ops.softnpu.mish_backward(grad, input)


npu_mish_backward.samples = [Sample(lambda make: (make(4, 9), make(4, 9, low=-3, high=3)))]
