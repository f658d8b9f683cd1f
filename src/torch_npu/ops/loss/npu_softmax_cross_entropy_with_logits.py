"""npu_softmax_cross_entropy_with_logits and its backward: labels that are distributions."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op


def _check(self, labels):
    allowed = [torch.float16, torch.float32]
    if chips.current().family not in ("310P", "910A"):
        allowed.append(torch.bfloat16)
    must.dtype("self", self, *allowed)
    must.ndim("self", self, 2)
    must.same_dtype("labels", labels, "self", self)
    must.shape("labels", labels, tuple(self.shape))


@npu_op("npu_softmax_cross_entropy_with_logits(Tensor self, Tensor labels) -> Tensor", aclop=True)
def npu_softmax_cross_entropy_with_logits(self, labels):
    r"""Cross entropy between each row's softmax and a label distribution.

    $$ \text{loss}_n = -\sum_c y_{n,c} \log \mathrm{softmax}(x_n)_c $$

    Args:
        self: the logits x, (N, C); float16, bfloat16 (not on Atlas training and inference series)
            or float32.
        labels: y, of the shape and dtype of `self`.

    Returns:
        the loss of each row, (N,), in the dtype of `self`.

    The gradient is upstream's, softmax(x) - y, which presumes that each row of `labels` sums to 1.
    """
    return -(wide(labels) * wide(self).log_softmax(-1)).sum(-1).to(self.dtype)


@npu_softmax_cross_entropy_with_logits.check
def _(self, labels):
    _check(self, labels)


@npu_softmax_cross_entropy_with_logits.backward
def _(grad, *, self, labels):
    return {
        "self": torch.ops.npu.npu_softmax_cross_entropy_with_logits_backward(grad, self, labels)
    }


npu_softmax_cross_entropy_with_logits.samples = [
    Sample(lambda make: (make(1, 48, low=0), make(1, 48, low=0))),
    Sample(lambda make: (make(4, 9), make(4, 9, low=0))),
    Sample(lambda make: (make(3, 5, dtype=torch.float16), make(3, 5, dtype=torch.float16))),
]


@npu_op(
    "npu_softmax_cross_entropy_with_logits_backward(Tensor grad, Tensor self, Tensor labels)"
    " -> Tensor",
    aclop=True,
)
def npu_softmax_cross_entropy_with_logits_backward(grad, self, labels):
    r"""Gradient of `npu_softmax_cross_entropy_with_logits` with respect to `self`.

    $$ dx_n = d\text{loss}_n \, (\mathrm{softmax}(x_n) - y_n) $$

    Args:
        grad: the gradient of the loss, (N,).
        self, labels: the arguments of the forward operator.

    Returns:
        dx with the shape and dtype of `self`.
    """
    dx = wide(self).softmax(-1) - wide(labels)
    return (dx * wide(grad).unsqueeze(-1)).to(self.dtype)


@npu_softmax_cross_entropy_with_logits_backward.check
def _(grad, self, labels):
    _check(self, labels)
    must.same_dtype("grad", grad, "self", self)
    must.shape("grad", grad, (self.shape[0],))


npu_softmax_cross_entropy_with_logits_backward.samples = [
    Sample(lambda make: (make(4), make(4, 9), make(4, 9, low=0)))
]
