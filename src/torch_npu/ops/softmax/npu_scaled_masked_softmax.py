"""npu_scaled_masked_softmax and its backward: softmax of scaled, masked logits."""

from __future__ import annotations

import numpy as np
import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op

#: what the operator puts in place of a masked logit; not -inf, so a fully masked row is uniform
MASKED = -10000.0


def _expands_to(shape: torch.Size, target: torch.Size) -> bool:
    tail = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and all(s in (1, t) for s, t in zip(shape, tail, strict=True))


def _hidden(x: torch.Tensor, mask: torch.Tensor, fixed_triu_mask: bool) -> torch.Tensor:
    """What is hidden: the mask, or all above the diagonal."""
    if not fixed_triu_mask:
        return mask
    return torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)


def _scaled(x: torch.Tensor, scale: float) -> tuple[torch.Tensor, float]:
    """What is multiplied by what inside: CANN's kernel rounds the product of float16 logits and a float16 scale."""
    if x.dtype != torch.float16:
        return x, scale
    return (x.float() * float(np.float16(scale))).to(x.dtype), 1.0


def _check_mask(mask, x, fixed_triu_mask, scale):
    must.dtype("mask", mask, torch.bool)
    must.hold(
        _expands_to(mask.shape, x.shape),
        "mask",
        f"of a shape that broadcasts to {tuple(x.shape)}",
        tuple(mask.shape),
    )
    must.hold(not isinstance(scale, complex), "scale", "an int or a float", repr(scale))
    new = chips.current().family == "A5"
    must.choice("fixed_triu_mask", fixed_triu_mask, (False,) if new else (False, True))
    if new:
        must.ndim("mask", mask, 4)
        must.shape("mask", mask, (None, None, *x.shape[-2:]))


@npu_op(
    "npu_scaled_masked_softmax(Tensor x, Tensor mask, Scalar scale=1, bool fixed_triu_mask=False)"
    " -> Tensor",
    compiled="fuse",
)
def npu_scaled_masked_softmax(x, mask, scale, fixed_triu_mask):
    r"""Softmax over the last dimension of scaled logits, of which some are masked.

    $$ y = \mathrm{softmax}(z), \qquad
       z = \begin{cases} -10000 & \text{where mask} \\ \text{scale} \cdot x & \text{else} \end{cases} $$

    Args:
        x: the logits, (..., H, W); float16, bfloat16 or float32.
        mask: bool, broadcastable to the shape of `x`; True hides an element.
        scale: the factor of `x`.
        fixed_triu_mask: True hides what lies above the diagonal, whatever `mask` says.

    Returns:
        y with the shape and dtype of `x`. A row whose elements are all masked is uniform.

    Constraints:
        H and W are from 32 to 4096 and multiples of 32. On Ascend950 `x` and `mask` have 4 dimensions, the mask
        its last two whole, W is at most 8192, and fixed_triu_mask is False.
    """
    hidden = _hidden(x, mask, fixed_triu_mask)
    x, scale = _scaled(x, scale)
    return (wide(x) * scale).masked_fill(hidden, MASKED).softmax(-1).to(x.dtype)


@npu_scaled_masked_softmax.check
def _(x, mask, scale, fixed_triu_mask):
    must.dtype("x", x, torch.float16, torch.bfloat16, torch.float32)
    if chips.current().family == "A5":  # aclnn_scaled_masked_softmax.cpp of CANN
        must.ndim("x", x, 4)
        width = x.shape[-1]
        must.hold(0 < width <= 8192, "x", "of a last size from 1 to 8192", tuple(x.shape))
        _check_mask(mask, x, fixed_triu_mask, scale)
        return
    must.ndim("x", x, 2, 4)
    must.hold(
        all(32 <= size <= 4096 and size % 32 == 0 for size in x.shape[-2:]),
        "x",
        "a tensor whose last two sizes are from 32 to 4096 and multiples of 32",
        tuple(x.shape),
    )
    _check_mask(mask, x, fixed_triu_mask, scale)


@npu_scaled_masked_softmax.native
def _(x, mask, scale, fixed_triu_mask):
    if not fits(x) or mask.dtype != torch.bool:
        return NotImplemented
    hidden = _hidden(x, mask, fixed_triu_mask)
    x, scale = _scaled(x, scale)
    return torch.ops.softnpu.masked_softmax(x, hidden, scale, MASKED)


@npu_scaled_masked_softmax.backward
def _(grad, *, mask, scale, fixed_triu_mask, result0):
    return {
        "x": torch.ops.npu.npu_scaled_masked_softmax_backward(
            grad, result0, mask, scale, fixed_triu_mask
        )
    }


npu_scaled_masked_softmax.samples = [
    Sample(lambda make: (make(2, 3, 32, 64), make(2, 1, 32, 64, dtype=torch.bool))),
    Sample(
        lambda make: (
            make(1, 2, 32, 32, dtype=torch.float16),
            make(1, 2, 32, 32, dtype=torch.bool),
        ),
        {"scale": 0.125},
    ),
    Sample(lambda make: (make(32, 96, dtype=torch.bfloat16), make(96, dtype=torch.bool), -2)),
]


@npu_op(
    "npu_scaled_masked_softmax_backward(Tensor y_grad, Tensor y, Tensor mask, Scalar scale,"
    " bool fixed_triu_mask) -> Tensor",
    compiled="fuse",
)
def npu_scaled_masked_softmax_backward(y_grad, y, mask, scale, fixed_triu_mask):
    r"""Gradient of `npu_scaled_masked_softmax` with respect to `x`.

    $$ dx = \begin{cases} 0 & \text{where mask} \\
       \text{scale} \cdot y \, (dy - \sum dy \cdot y) & \text{else} \end{cases} $$

    Args:
        y_grad: the gradient of the result.
        y: the result.
        mask, scale, fixed_triu_mask: the arguments of the forward operator.

    Returns:
        dx with the shape and dtype of `y_grad`.
    """
    dy, p = wide(y_grad), wide(y)
    dz = p * (dy - (dy * p).sum(-1, keepdim=True))
    return (dz * scale).masked_fill(_hidden(y, mask, fixed_triu_mask), 0).to(y_grad.dtype)


@npu_scaled_masked_softmax_backward.check
def _(y_grad, y, mask, scale, fixed_triu_mask):
    must.dtype("y_grad", y_grad, torch.float16, torch.bfloat16, torch.float32)
    must.same_dtype("y", y, "y_grad", y_grad)
    must.shape("y", y, tuple(y_grad.shape))
    _check_mask(mask, y, fixed_triu_mask, scale)


@npu_scaled_masked_softmax_backward.native
def _(y_grad, y, mask, scale, fixed_triu_mask):
    if not fits(y_grad, y) or mask.dtype != torch.bool:
        return NotImplemented
    hidden = _hidden(y, mask, fixed_triu_mask)
    return torch.ops.softnpu.masked_softmax_backward(y_grad, y, hidden, scale)


npu_scaled_masked_softmax_backward.samples = [
    Sample(
        lambda make: (
            make(2, 32, 32),
            make(2, 32, 32, low=0),
            make(1, 32, 32, dtype=torch.bool),
            0.5,
            False,
        )
    ),
]
