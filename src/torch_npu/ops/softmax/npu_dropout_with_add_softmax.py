"""npu_dropout_with_add_softmax and its backward: add, softmax and dropout in one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, kernel_generator, npu_op
from torch_npu.ops._shared import _dropout_mask as _mask

SIZES = (128, 256, 384, 512)


def _check_options(prob, dim):
    must.hold(0 <= prob < 1, "prob", "at least 0 and below 1", prob)
    must.hold(dim == -1, "dim", "-1", dim)


def _kept(mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    return mask[: math.prod(shape)].view(shape).bool()


#: elements that are computed at a time, so that temporaries stay small beside the results
_BLOCK = 1 << 20


def _dropped(x, x1, keep, alpha, prob, dim):
    """The softmax in wide precision, and what dropout leaves of it."""
    softmax = (wide(x1) + wide(x) * alpha).softmax(dim)
    return softmax, _mask.drop(softmax, keep, prob)


def _empty(like: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def _blocks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The tensors, which have one shape, some rows at a time."""
    rows = max(1, _BLOCK // max(1, math.prod(tensors[0].shape[1:])))
    return zip(*(t.split(rows) for t in tensors), strict=True)


@npu_op(
    "npu_dropout_with_add_softmax(Tensor self, Tensor x1, Scalar alpha, float prob, int dim)"
    " -> (Tensor, Tensor, Tensor)",
    random=True,
    output_differentiability=(False, False, True),
    aclop=True,
)
def npu_dropout_with_add_softmax(self, x1, alpha, prob, dim):
    r"""Softmax of a scaled sum, then dropout.

    $$ s = \mathrm{softmax}(x_1 + \alpha \cdot x), \qquad
       y_i = \frac{s_i \, m_i}{1 - \text{prob}}, \qquad P(m_i = 0) = \text{prob} $$

    Args:
        self: x, (N, C, H, W); float16, bfloat16 or float32.
        x1: the addend, of the shape and dtype of `self`.
        alpha: the factor of `self`.
        prob: the probability of dropping an element, at least 0 and below 1.
        dim: the dimension of the softmax, -1.

    Returns:
        the mask (uint8, 1-D, one byte an element, 1 where kept, padded to a multiple of 128), s
        and y, both with the shape and dtype of `self`. Only y passes gradients back.

    Constraints:
        H and W are 128, 256, 384 or 512; N * C is a multiple of 32.

    Differs from upstream: the mask comes from the device's generator (upstream draws it from a
    fixed seed).
    """
    keep = _mask.draw(_mask.aligned(self.numel()), prob, self.device, kernel_generator())
    kept = keep[: self.numel()].view(self.shape)
    softmax, dropped = _dropped(self, x1, kept, alpha, prob, dim)
    return keep.to(torch.uint8), softmax.to(x1.dtype), dropped.to(self.dtype)


@npu_dropout_with_add_softmax.check
def _(self, x1, alpha, prob, dim):
    must.dtype("self", self, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("self", self, 4)
    must.hold(
        all(size in SIZES for size in self.shape[2:]),
        "self",
        f"a tensor whose last two sizes are {must.one_of(SIZES)}",
        tuple(self.shape),
    )
    must.hold(
        (self.shape[0] * self.shape[1]) % 32 == 0,
        "self",
        "a tensor whose first two sizes multiply to a multiple of 32",
        tuple(self.shape),
    )
    must.same_dtype("x1", x1, "self", self)
    must.shape("x1", x1, tuple(self.shape))
    must.hold(not isinstance(alpha, complex), "alpha", "an int or a float", repr(alpha))
    _check_options(prob, dim)


@npu_dropout_with_add_softmax.native
def _(self, x1, alpha, prob, dim):
    if dim != -1 or self.dim() < 2:
        return NotImplemented
    generator = kernel_generator()
    mask = torch.ones(_mask.aligned(self.numel()), dtype=torch.uint8, device=self.device)
    if prob > 0:
        for part in mask.split(_BLOCK):
            part.copy_(_mask.draw(part.numel(), prob, self.device, generator))
    softmax, y = _empty(x1), _empty(self)
    keep = mask[: self.numel()].view(self.shape).view(torch.bool)
    for x, addend, kept, to_softmax, to_y in _blocks(self, x1, keep, softmax, y):
        values, dropped = _dropped(x, addend, kept, alpha, prob, dim)
        to_softmax.copy_(values)
        to_y.copy_(dropped)
    return mask, softmax, y


@npu_dropout_with_add_softmax.backward
def _(grad, *, alpha, prob, dim, result0, result1):
    dself, dx1 = torch.ops.npu.npu_dropout_with_add_softmax_backward(
        grad, result0, result1, alpha, prob, dim
    )
    return {"self": dself, "x1": dx1}


npu_dropout_with_add_softmax.samples = [
    Sample(lambda make: (make(4, 8, 128, 128), make(4, 8, 128, 128), 2, 0.9, -1)),
    Sample(
        lambda make: (
            make(32, 1, 128, 256, dtype=torch.float16),
            make(32, 1, 128, 256, dtype=torch.float16),
            0.125,
            0.0,
            -1,
        )
    ),
]


@npu_op(
    "npu_dropout_with_add_softmax_backward(Tensor grad, Tensor mask, Tensor softmax_out,"
    " Scalar alpha, float prob, int dim) -> (Tensor, Tensor)",
    compiled="fuse",
    aclop=True,
)
def npu_dropout_with_add_softmax_backward(grad, mask, softmax_out, alpha, prob, dim):
    r"""Gradients of `npu_dropout_with_add_softmax` with respect to `self` and `x1`.

    $$ g_i = \frac{dy_i \, m_i}{1 - \text{prob}}, \qquad dx_1 = s \, (g - \sum g \cdot s), \qquad
       dx = \alpha \cdot dx_1 $$

    Args:
        grad: the gradient of the dropped-out result.
        mask: the byte mask of the forward operator.
        softmax_out: s, the second result of the forward operator.
        alpha, prob, dim: the arguments of the forward operator.

    Returns:
        the gradients of `self` and of `x1`, with the shape and dtype of `softmax_out`.

    Differs from upstream: there the second result is `grad` itself, which is not the gradient of
    `x1`.
    """
    s = wide(softmax_out)
    g = _mask.drop(wide(grad), _kept(mask, grad.shape), prob)
    dx1 = s * (g - (g * s).sum(dim, keepdim=True))
    return (dx1 * alpha).to(softmax_out.dtype), dx1.to(softmax_out.dtype)


@npu_dropout_with_add_softmax_backward.check
def _(grad, mask, softmax_out, prob, dim):
    must.dtype("grad", grad, torch.float16, torch.bfloat16, torch.float32)
    must.shape("softmax_out", softmax_out, tuple(grad.shape))
    must.dtype("mask", mask, torch.uint8)
    must.shape("mask", mask, (_mask.aligned(grad.numel()),))
    _check_options(prob, dim)


@npu_dropout_with_add_softmax_backward.native
def _(grad, mask, softmax_out, alpha, prob, dim):
    body = npu_dropout_with_add_softmax_backward.kernel
    if dim != -1 or grad.dim() < 2:
        return NotImplemented
    kept = mask[: grad.numel()].view(grad.shape)
    dx, dx1 = _empty(softmax_out), _empty(softmax_out)
    for g, m, s, to_dx, to_dx1 in _blocks(grad, kept, softmax_out, dx, dx1):
        for target, values in zip(
            (to_dx, to_dx1), body(g, m.flatten(), s, alpha, prob, dim), strict=True
        ):
            target.copy_(values)
    return dx, dx1


npu_dropout_with_add_softmax_backward.samples = [
    Sample(
        lambda make: (
            make(1, 2, 16, 16),
            make(512, dtype=torch.uint8, low=0, high=2),
            make(1, 2, 16, 16, low=0),
            0.5,
            0.25,
            -1,
        )
    ),
]
