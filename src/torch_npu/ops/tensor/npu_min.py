"""npu_min and its backward: the smallest value along a dimension, and where it is."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.tensor._extreme import check_dim, check_gradient, extreme, gradient


@npu_op(
    "npu_min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)",
    aclop=True,
)
def npu_min_dim(self, dim, keepdim):
    r"""The smallest values along a dimension, and where they are; of equal ones the first.

    $$ values = \min_{dim} x, \qquad indices = \arg\min_{dim} x $$

    Args:
        self: any real tensor.
        dim: the dimension to reduce.
        keepdim: whether it stays, with size 1.

    Returns:
        The values with the dtype of `self`, and their indices in int32.
    """
    return extreme(torch.min, self, dim, keepdim)


npu_min_dim.check(check_dim)


@npu_min_dim.backward
def _(grad, _grad_indices, *, self, dim, keepdim, result1):
    return {"self": torch.ops.npu.npu_min_backward(grad, dim, result1, self.shape, keepdim)}


npu_min_dim.samples = [
    Sample(lambda make: (make(2, 3, 4), 1)),
    Sample(lambda make: (make(5, 6, dtype=torch.float16), -1), {"keepdim": True}),
    Sample(lambda make: (make(5, 6, dtype=torch.int32, low=0, high=3), 0), name="ties"),
]


@npu_op(
    "npu_min_backward(Tensor grad, int dim, Tensor indices, SymInt[] sizes, bool keepdim) -> Tensor",
    aclop=True,
)
def npu_min_backward(grad, dim, indices, sizes, keepdim):
    """Gradient of `npu_min`: `grad` at the places that `indices` names, zeros elsewhere."""
    return gradient(grad, dim, indices, sizes, keepdim)


npu_min_backward.check(check_gradient)
npu_min_backward.samples = [
    Sample(
        lambda make: (
            make(2, 4), 1, make(2, 4, dtype=torch.int32, low=0, high=3), [2, 3, 4], False
        )
    )
]  # fmt: skip
