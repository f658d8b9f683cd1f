"""dropout_with_byte_mask, _dropout_with_byte_mask and its backward: one byte an element."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._operator import library
from torch_npu.ops._registry import Sample, kernel_generator, npu_op
from torch_npu.ops._shared import _dropout_mask as _mask


def _draw_like(x: torch.Tensor, p: float) -> torch.Tensor:
    return _mask.draw(x.numel(), p, x.device, kernel_generator()).view(x.shape)


@npu_op("dropout_with_byte_mask(Tensor self, float p, bool train) -> Tensor", random=True)
def dropout_with_byte_mask(self, p, train):
    r"""Dropout that uses a byte mask internally; the identity unless training.

    $$ y_i = \frac{x_i \, m_i}{1 - p}, \qquad P(m_i = 0) = p $$

    Args:
        self: the input x, up to 8 dimensions; float16, float32, and bfloat16 but on older series.
        p: the probability of dropping an element, from 0 to 1.
        train: whether to drop at all.

    Returns:
        y with the shape and dtype of `self`.

    Differs from upstream: the same seed gives other elements than on the card, and the identity is
    a copy.
    """
    return _mask.drop(self, _draw_like(self, p), p) if train else self.clone()


@dropout_with_byte_mask.check
def _(self, p):
    _mask.check_input("self", self)
    _mask.check_probability(p)


dropout_with_byte_mask.samples = [
    Sample(lambda make: (make(3, 50), 0.5, True)),
    Sample(lambda make: (make(3, 50, dtype=torch.float16), 0.5, False)),
]


def _differentiable(self, p, train):
    if not train:
        return self.clone()
    return torch.ops.npu._dropout_with_byte_mask(self, p)[0]


library.impl("dropout_with_byte_mask", _differentiable, "AutogradPrivateUse1")


@npu_op("_dropout_with_byte_mask(Tensor self, float p) -> (Tensor, Tensor)", random=True)
def _dropout_with_byte_mask(self, p):
    r"""Dropout that also returns its mask, one byte an element.

    $$ y_i = \frac{x_i \, m_i}{1 - p}, \qquad P(m_i = 0) = p $$

    Args:
        self: the input x, up to 8 dimensions; float16, float32, and bfloat16 but on older series.
        p: the probability of dropping an element, from 0 to 1.

    Returns:
        y with the shape and dtype of `self`, and the mask: uint8 of the shape of `self`, 1 where
        kept.

    Differs from upstream: the same seed gives other elements than on the card.
    """
    keep = _draw_like(self, p)
    return _mask.drop(self, keep, p), keep.to(torch.uint8)


@_dropout_with_byte_mask.check
def _(self, p):
    _mask.check_input("self", self)
    _mask.check_probability(p)


@_dropout_with_byte_mask.backward
def _(grad, _grad_mask, *, p, result1):
    dx = torch.ops.npu._dropout_with_byte_mask_backward(grad, result1, p)
    return {"self": dx}


_dropout_with_byte_mask.samples = [
    Sample(lambda make: (make(3, 50), 0.5)),
    Sample(lambda make: (make(2, 64, dtype=torch.bfloat16), 0.1)),
]


@npu_op("_dropout_with_byte_mask_backward(Tensor grad_output, Tensor mask, float p) -> Tensor")
def _dropout_with_byte_mask_backward(grad_output, mask, p):
    r"""Gradient of `_dropout_with_byte_mask`: the mask applied to the gradient.

    $$ dx_i = \frac{dy_i \, m_i}{1 - p} $$

    Args:
        grad_output: the gradient of the result; float16, bfloat16 or float32.
        mask: the byte mask of the forward operator, uint8 of the same shape.
        p: the probability of dropping an element.

    Returns:
        dx with the shape and dtype of `grad_output`.
    """
    return _mask.drop(grad_output, mask.bool(), p)


@_dropout_with_byte_mask_backward.check
def _(grad_output, mask, p):
    _mask.check_input("grad_output", grad_output)
    must.dtype("mask", mask, torch.uint8)
    must.shape("mask", mask, tuple(grad_output.shape))
    _mask.check_probability(p)


_dropout_with_byte_mask_backward.samples = [
    Sample(lambda make: (make(3, 50), make(3, 50, dtype=torch.uint8, low=0, high=2), 0.5)),
]
