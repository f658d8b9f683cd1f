"""npu_dropout_do_mask: dropout by a bit mask made beforehand."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _dropout_mask as _mask


@npu_op("npu_dropout_do_mask(Tensor self, Tensor mask, float p) -> (Tensor, Tensor)", aclop=True)
def npu_dropout_do_mask(self, mask, p):
    r"""Applies a bit mask, e.g. of `npu_dropout_gen_mask`, to a tensor.

    $$ y_i = \frac{x_i \, m_i}{1 - p} $$

    Args:
        self: the input x, up to 8 dimensions; float16, float32, and bfloat16 but on older series.
        mask: uint8 of ceil(numel / 128) * 16 bytes; bit i, the lowest of a byte first, keeps
            element i.
        p: the probability with which the mask was made, from 0 to 1.

    Returns:
        y with the shape and dtype of `self`, and the mask.

    Differs from upstream: the returned mask is a copy, not the argument itself.
    """
    return _mask.drop(self, _mask.unpack(mask, self.shape), p), mask.clone()


@npu_dropout_do_mask.check
def _(self, mask, p):
    _mask.check_input("self", self)
    _mask.check_bit_mask(mask, self)
    _mask.check_probability(p)


@npu_dropout_do_mask.backward
def _(grad, _grad_mask, *, mask, p):
    return {"self": torch.ops.npu.npu_dropout_backward(grad, mask, p)}


npu_dropout_do_mask.samples = [
    Sample(lambda make: (make(9, 15), make(32, dtype=torch.uint8, low=0, high=256), 0.5)),
    Sample(
        lambda make: (
            make(128, dtype=torch.float16),
            make(16, dtype=torch.uint8, low=0, high=256),
            0.0,
        )
    ),
]
