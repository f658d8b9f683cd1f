"""npu_attn_softmax_ and npu_attn_softmax_backward_: softmax and its gradient over the same memory."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats


@npu_op("npu_attn_softmax_(Tensor(a!) self) -> Tensor(a!)", ge="SoftmaxV2")
def npu_attn_softmax_(self):
    r"""The softmax over the last dimension, in place.

    Args:
        self: up to 8 dimensions; float16, float32, float64, and bfloat16 but on Atlas training and inference series;
            written.

    Returns:
        `self`.
    """
    return self.copy_(wide(self).softmax(-1))


@npu_attn_softmax_.check
def _(self):
    must.dtype("self", self, *vector_floats(), torch.float64)
    must.ndim("self", self, 0, 8)


@npu_attn_softmax_.meta
def _(self):
    return self


npu_attn_softmax_.samples = [
    Sample(lambda make: (make(2, 3, 5),)),
    Sample(lambda make: (make(4, 8, dtype=torch.float16),)),
]


@npu_op(
    "npu_attn_softmax_backward_(Tensor(a!) self, Tensor grad_output, Tensor values) -> Tensor(a!)",
    ge="SoftmaxGrad",
    product=True,
)
def npu_attn_softmax_backward_(self, grad_output, values):
    r"""The gradient of the scores s of `softmax(s) @ values`, over the memory of the softmax.

    $$ p \gets p \cdot (g V^T - \sum p \cdot g V^T) $$

    Args:
        self: p, the softmax, (..., S1, S2), float16, float32, and bfloat16 but on older series, written.
        grad_output: g, the gradient of the product, (..., S1, D), the dtype of `self`.
        values: V, (..., S2, D), the dtype of `self`.

    Returns:
        `self`.
    """
    weights = wide(self)
    outer = wide((wide(grad_output) @ wide(values).mT).to(self.dtype))
    inner = (weights * outer).sum(-1, keepdim=True)
    return self.copy_(weights * (outer - inner))


@npu_attn_softmax_backward_.check
def _(self, grad_output, values):
    must.dtype("self", self, *vector_floats())
    must.hold(self.dim() >= 2, "self", "of at least 2 dimensions", tuple(self.shape))
    must.same_dtype("grad_output", grad_output, "self", self)
    must.same_dtype("values", values, "self", self)
    *batch, rows, columns = self.shape
    must.shape("grad_output", grad_output, (*batch, rows, None))
    must.shape("values", values, (*batch, columns, grad_output.shape[-1]))


@npu_attn_softmax_backward_.meta
def _(self):
    return self


npu_attn_softmax_backward_.samples = [
    Sample(lambda make: (make(2, 3, 5, low=0, high=1), make(2, 3, 4), make(2, 5, 4))),
]
