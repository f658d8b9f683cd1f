"""npu_gelu and npu_gelu_backward: GELU by the error function or by its tanh approximation."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats

APPROXIMATIONS = ("none", "tanh")


@npu_op("npu_gelu(Tensor self, *, str approximate='none') -> Tensor", compiled="fuse", ge="GeluV2")
def npu_gelu(self, approximate):
    r"""The Gaussian error linear unit of each element.

    $$ y = \frac{x}{2} \left(1 + \mathrm{erf}\frac{x}{\sqrt 2}\right) $$

    and with `approximate="tanh"`

    $$ y = \frac{x}{2} \left(1 + \tanh\left(\sqrt{2 / \pi} (x + 0.044715 x^3)\right)\right) $$

    Args:
        self: x, up to 8 dimensions; float16, float32, and bfloat16 but on Atlas training and
            inference series.
        approximate: "none" for the error function, "tanh" for the approximation.

    Returns:
        y, with the shape and dtype of `self`.
    """
    return torch.nn.functional.gelu(wide(self), approximate=approximate).to(self.dtype)


@npu_gelu.check
def _(self, approximate):
    must.dtype("self", self, *vector_floats())
    must.ndim("self", self, 0, 8)
    must.choice("approximate", approximate, APPROXIMATIONS)


@npu_gelu.native
def _(self, approximate):
    if not fits(self):
        return NotImplemented
    return torch.ops.softnpu.gelu(self, approximate == "tanh")


@npu_gelu.backward
def _(grad, *, self, approximate):
    how = approximate
    return {"self": torch.ops.npu.npu_gelu_backward(grad, self, approximate=how)}


npu_gelu.samples = [
    Sample(lambda make: (make(4, 33, low=-4, high=4),)),
    Sample(lambda make: (make(2, 3, 5),), {"approximate": "tanh"}),
    Sample(lambda make: (make(8, dtype=torch.bfloat16),), {"approximate": "none"}),
]


@npu_op(
    "npu_gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor",
    compiled="fuse",
)
def npu_gelu_backward(grad_output, self, approximate):
    r"""Gradient of `npu_gelu`: $dx = dy \cdot \mathrm{gelu}'(x)$ of the chosen formula.

    Args:
        grad_output: dy, of a shape that broadcasts with `self`.
        self: x, the forward's input.
        approximate: as in the forward.

    Returns:
        dx, of the broadcast shape and the promoted dtype of both.
    """
    out = torch.result_type(grad_output, self)
    dy, x = torch.broadcast_tensors(wide(grad_output), wide(self))
    return torch.ops.aten.gelu_backward(dy, x, approximate=approximate).to(out)


@npu_gelu_backward.check
def _(grad_output, self, approximate):
    must.dtype("grad_output", grad_output, *vector_floats())
    must.dtype("self", self, *vector_floats())
    must.ndim("self", self, 0, 8)
    must.choice("approximate", approximate, APPROXIMATIONS)
    pairs = zip(reversed(grad_output.shape), reversed(self.shape), strict=False)
    must.hold(
        all(a == b or a == 1 or b == 1 for a, b in pairs),
        "grad_output",
        f"of a shape that broadcasts with 'self' {tuple(self.shape)}",
        tuple(grad_output.shape),
    )


@npu_gelu_backward.native
def _(grad_output, self, approximate):
    if not fits(grad_output, self):
        return NotImplemented
    return torch.ops.softnpu.gelu_backward(grad_output, self, approximate == "tanh")


npu_gelu_backward.samples = [
    Sample(lambda make: (make(4, 33), make(4, 33, low=-4, high=4))),
    Sample(lambda make: (make(7), make(3, 7)), {"approximate": "tanh"}),
]
