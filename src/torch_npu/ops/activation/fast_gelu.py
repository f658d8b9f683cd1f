"""fast_gelu: the older name of npu_fast_gelu."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops._shared._sigmoid import FAST_GELU, swish


@npu_op("fast_gelu(Tensor self) -> Tensor", compiled="fuse")
def fast_gelu(self):
    r"""The fast GELU of each element, as `npu_fast_gelu` computes it.

    $$ \mathrm{fast\_gelu}(x) = \frac{x}{1 + e^{-1.702 x}} $$

    Args:
        self: up to 8 dimensions; float16, float32, and bfloat16 but on Atlas training and inference series.

    Returns:
        The result, with the shape and dtype of `self`.
    """
    return swish(wide(self), FAST_GELU).to(self.dtype)


@fast_gelu.check
def _(self):
    must.dtype("self", self, *vector_floats())
    must.ndim("self", self, 0, 8)


@fast_gelu.native
def _(self):
    return torch.ops.softnpu.swish(self, FAST_GELU) if fits(self) else NotImplemented


@fast_gelu.backward
def _(grad, *, self):
    return {"self": torch.ops.npu.npu_fast_gelu_backward(grad, self)}


fast_gelu.samples = [
    Sample(lambda make: (make(2, 9, low=-4, high=4),)),
    Sample(lambda make: (make(2, 3, 5, dtype=torch.float16),)),
]
