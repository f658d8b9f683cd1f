"""npu_confusion_transpose and its backward: reshape and transpose in one."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.tensor._dims import check_permutation, check_sizes, dense

_DTYPES = (
    torch.float16, torch.float32, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip


@npu_op(
    "npu_confusion_transpose(Tensor self, int[] perm, int[] shape, bool transpose_first) -> Tensor"
)
def npu_confusion_transpose(self, perm, shape, transpose_first):
    r"""Permutes dimensions and reshapes, in either order.

    $$ y = \mathrm{reshape}(x^{perm}, shape)\ \text{if transpose\_first, else}\
       \mathrm{reshape}(x, shape)^{perm} $$

    Args:
        self: float16, float32, an integer type, or bfloat16 from Atlas A2 on.
        perm: the order of the dimensions: of `self` if `transpose_first`, else of `shape`.
        shape: the sizes to reshape to.
        transpose_first: which of the two comes first.

    Returns:
        A contiguous tensor: of `shape`, or of `shape` permuted.
    """
    if transpose_first:
        return dense(self.permute(perm).reshape(shape))
    return dense(self.reshape(shape).permute(perm))


@npu_confusion_transpose.check
def _(self, perm, shape, transpose_first):
    older = chips.current().family in ("910A", "310P")
    must.dtype("self", self, *_DTYPES, *(() if older else (torch.bfloat16,)))
    check_permutation("perm", perm, self.dim() if transpose_first else len(shape))
    check_sizes("shape", shape, self.numel())


@npu_confusion_transpose.backward
def _(grad, *, self, perm, transpose_first):
    return {
        "self": torch.ops.npu.npu_confusion_transpose_backward(
            grad, perm, self.shape, not transpose_first
        )
    }


npu_confusion_transpose.samples = [
    Sample(lambda make: (make(3, 2, 5, 4), [1, 0, 3, 2], [6, 20], True)),
    Sample(lambda make: (make(3, 2, 5, 4), [2, 0, 1], [6, 5, 4], False)),
]


@npu_op(
    "npu_confusion_transpose_backward(Tensor grad, int[] perm, SymInt[] shape, "
    "bool transpose_first) -> Tensor"
)
def npu_confusion_transpose_backward(grad, perm, shape, transpose_first):
    """Gradient of `npu_confusion_transpose` of an input of `shape`, with the opposite flag."""
    inverse = sorted(range(len(perm)), key=lambda i: perm[i])
    if transpose_first:
        return dense(grad.permute(inverse).reshape(shape))
    return dense(grad.reshape([shape[p] for p in perm]).permute(inverse))


@npu_confusion_transpose_backward.check
def _(grad, perm, shape, transpose_first):
    check_permutation("perm", perm, grad.dim() if transpose_first else len(shape))
    check_sizes("shape", shape, grad.numel())


npu_confusion_transpose_backward.samples = [
    Sample(lambda make: (make(6, 20), [1, 0, 3, 2], [3, 2, 5, 4], False)),
    Sample(lambda make: (make(4, 6, 5), [2, 0, 1], [3, 2, 5, 4], True)),
]
