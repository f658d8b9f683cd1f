"""_npu_dropout and npu_dropout_backward: dropout with a bit mask."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, kernel_generator, npu_op
from torch_npu.ops._shared import _dropout_mask as _mask


@npu_op("_npu_dropout(Tensor self, float p) -> (Tensor, Tensor)", random=True)
def _npu_dropout(self, p):
    r"""Dropout that also returns its mask, one bit an element.

    $$ y_i = \frac{x_i \, m_i}{1 - p}, \qquad P(m_i = 0) = p $$

    The random bits come from the device's default generator.

    Args:
        self: the input x, up to 8 dimensions; float16, float32, and bfloat16 but on older series.
        p: the probability of dropping an element, from 0 to 1.

    Returns:
        y with the shape and dtype of `self`, and the mask: uint8 of ceil(numel / 128) * 16 bytes,
        whose bit i (the lowest of a byte first) is set where element i was kept; the padding bits
        are random.

    Differs from upstream: the same seed gives other bits than the card's generator would.
    """
    count = _mask.aligned(self.numel())
    keep = _mask.draw(count, p, self.device, kernel_generator())
    result = _mask.drop(self, keep[: self.numel()].view(self.shape), p)
    return result, _mask.pack(keep)


@_npu_dropout.check
def _(self, p):
    _mask.check_input("self", self)
    _mask.check_probability(p)


@_npu_dropout.backward
def _(grad, _grad_mask, *, p, result1):
    return {"self": torch.ops.npu.npu_dropout_backward(grad, result1, p)}


_npu_dropout.samples = [
    Sample(lambda make: (make(4), 0.3)),
    Sample(lambda make: (make(7, 33, dtype=torch.float16), 0.5)),
    Sample(lambda make: (make(2, 3, 128, dtype=torch.bfloat16), 0.1)),
]


@npu_op("npu_dropout_backward(Tensor grad_output, Tensor mask, float p) -> Tensor")
def npu_dropout_backward(grad_output, mask, p):
    r"""Gradient of `_npu_dropout` and `npu_dropout_do_mask`: the mask applied to the gradient.

    $$ dx_i = \frac{dy_i \, m_i}{1 - p} $$

    Args:
        grad_output: the gradient of the result; float16, bfloat16 or float32.
        mask: the bit mask of the forward operator, uint8.
        p: the probability of dropping an element.

    Returns:
        dx with the shape and dtype of `grad_output`.
    """
    return _mask.drop(grad_output, _mask.unpack(mask, grad_output.shape), p)


@npu_dropout_backward.check
def _(grad_output, mask, p):
    _mask.check_input("grad_output", grad_output)
    _mask.check_bit_mask(mask, grad_output)
    _mask.check_probability(p)


npu_dropout_backward.samples = [
    Sample(lambda make: (make(5, 7), make(16, dtype=torch.uint8, low=0, high=256), 0.5)),
]
