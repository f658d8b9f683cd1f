"""npu_binary_cross_entropy_with_logits_backward."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats

REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


@npu_op(
    "npu_binary_cross_entropy_with_logits_backward(Tensor grad_output, Tensor self, Tensor target,"
    " Tensor? weight_opt, Tensor? pos_weight_opt, int reduction) -> Tensor",
    ge="SigmoidCrossEntropyWithLogitsGradV2",
)
def npu_binary_cross_entropy_with_logits_backward(
    grad_output, self, target, weight_opt, pos_weight_opt, reduction
):
    r"""Gradient of the binary cross-entropy of logits.

    $$ dx = dy\, w \left((1 - t)\, \sigma(x) - p\, t\, (1 - \sigma(x))\right) $$

    divided by the number of elements for the mean.

    Args:
        grad_output: dy, broadcast to the shape of `self`.
        self: x, the logits; float16, float32, and bfloat16 but on Atlas training and inference series.
        target: t, with the shape of `self`.
        weight_opt: w, broadcast; None for 1.
        pos_weight_opt: p, broadcast; None for 1.
        reduction: 0 none, 1 mean, 2 sum.

    Returns:
        dx, with the shape and dtype of `self`.
    """
    x, t = wide(self), wide(target)
    s = torch.sigmoid(x)
    if pos_weight_opt is None:
        slope = s - t
    else:
        positive = wide(pos_weight_opt) * t
        slope = (positive + 1 - t) * s - positive
    grad = slope * wide(grad_output)
    if weight_opt is not None:
        grad = grad * wide(weight_opt)
    if reduction == 1:
        grad = grad * (1 / max(self.numel(), 1))
    return grad.to(self.dtype)


@npu_binary_cross_entropy_with_logits_backward.check
def _(grad_output, self, target, weight_opt, pos_weight_opt, reduction):
    kinds = vector_floats()
    must.dtype("self", self, *kinds)
    shape = tuple(self.shape)
    must.dtype("target", target, *kinds)
    must.shape("target", target, shape)
    for name, tensor in (
        ("grad_output", grad_output),
        ("weight_opt", weight_opt),
        ("pos_weight_opt", pos_weight_opt),
    ):
        must.dtype(name, tensor, *kinds)
        if tensor is not None:
            sizes = tuple(tensor.shape)
            fits = len(sizes) <= len(shape) and all(
                a in (1, b) for a, b in zip(sizes[::-1], shape[::-1], strict=False)
            )
            must.hold(fits, name, f"of a shape that broadcasts to {shape}", sizes)
    must.choice("reduction", reduction, REDUCTIONS)


npu_binary_cross_entropy_with_logits_backward.samples = [
    Sample(
        lambda make: (make(3, 4), make(3, 4), make(3, 4, low=0), make(4, low=0), make(4, low=0), 0)
    ),
    Sample(lambda make: (make(), make(3, 4), make(3, 4, low=0), None, None, 1)),
]
