"""npu_swiglu and npu_swiglu_backward: the Swish-gated linear unit."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import elementwise
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops._shared._sigmoid import swish, swish_slope


def _check_split(self, dim):
    must.dtype("self", self, *vector_floats())
    must.ndim("self", self, 1, 8)
    rank = self.dim()
    must.hold(-rank <= dim < rank, "dim", f"in [{-rank}, {rank - 1}]", dim)
    shape = tuple(self.shape)
    must.hold(shape[dim] % 2 == 0, "self", f"of even size in dimension {dim} (dim)", shape)


@npu_op("npu_swiglu(Tensor self, int dim=-1) -> Tensor", compiled="fuse", ge="SwiGlu")
def npu_swiglu(self, dim):
    r"""Splits x into halves A and B along `dim`; the Swish of A gates B.

    $$ y = A \cdot \mathrm{sigmoid}(A) \cdot B $$

    Args:
        self: x, 1 to 8 dimensions, even along `dim`; float16, bfloat16 or float32.
        dim: the dimension to halve, in [-self.dim(), self.dim() - 1].

    Returns:
        y, of the dtype of `self` and half its size along `dim`.

    Differs from upstream: non-contiguous and empty tensors, which the page excludes, are accepted.
    """
    gate, value = wide(self).chunk(2, dim)
    return (swish(gate) * value).to(self.dtype).contiguous()


@npu_swiglu.check
def _(self, dim):
    _check_split(self, dim)


@npu_swiglu.native
def _(self, dim):
    return torch.ops.softnpu.swiglu(self, dim) if fits(self) else NotImplemented


@npu_swiglu.backward
def _(grad, *, self, dim):
    return {"self": torch.ops.npu.npu_swiglu_backward(grad, self, dim)}


@npu_swiglu.sharding
def _(self, dim):
    yield from elementwise(self.ndim, "self", but=dim)


npu_swiglu.samples = [
    Sample(lambda make: (make(4, 3, 32),)),
    Sample(lambda make: (make(2, 6, 5, 3),), {"dim": 1}),
    Sample(lambda make: (make(4, 16, dtype=torch.bfloat16), -1)),
]


@npu_op(
    "npu_swiglu_backward(Tensor grad_output, Tensor self, int dim=-1) -> Tensor",
    compiled="fuse",
    ge="SwiGluGrad",
)
def npu_swiglu_backward(grad_output, self, dim):
    r"""Gradient of `npu_swiglu`.

    $$ dA = dy \cdot B \cdot \mathrm{swish}'(A), \quad dB = dy \cdot \mathrm{swish}(A) $$

    Args:
        grad_output: dy, half the size of `self` along `dim`; the dtype of `self`.
        self: x, the forward's input.
        dim: as in the forward.

    Returns:
        dx = (dA, dB) joined along `dim`, with the shape and dtype of `self`.
    """
    dy = wide(grad_output)
    gate, value = wide(self).chunk(2, dim)
    return torch.cat((dy * value * swish_slope(gate), dy * swish(gate)), dim).to(self.dtype)


@npu_swiglu_backward.check
def _(grad_output, self, dim):
    _check_split(self, dim)
    half = list(self.shape)
    half[dim] = half[dim] // 2
    must.same_dtype("grad_output", grad_output, "self", self)
    must.shape("grad_output", grad_output, half)


@npu_swiglu_backward.native
def _(grad_output, self, dim):
    if not fits(grad_output, self):
        return NotImplemented
    return torch.ops.softnpu.swiglu_backward(grad_output, self, dim)


@npu_swiglu_backward.sharding
def _(self, dim):
    yield from elementwise(self.ndim, "grad_output", "self", but=dim)


npu_swiglu_backward.samples = [
    Sample(lambda make: (make(4, 3, 16), make(4, 3, 32))),
    Sample(lambda make: (make(2, 3, 5), make(2, 6, 5), 1)),
]
