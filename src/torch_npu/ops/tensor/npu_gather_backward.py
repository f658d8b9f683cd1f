"""npu_gather_backward: the gradient of torch.gather."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import Sharding


@npu_op(
    "npu_gather_backward(Tensor grad, SymInt[] self_size, int dim, Tensor index, bool sparse_grad)"
    " -> Tensor"
)
def npu_gather_backward(grad, self_size, dim, index):
    r"""Gradient of `torch.gather`: adds the gradients of each element that was taken.

    Args:
        grad: dy, with the shape of `index`.
        self_size: the shape of the tensor that was gathered from.
        dim: the dimension of the index.
        index: int32 or int64.
        sparse_grad: False.

    Returns:
        dx, of shape `self_size` and the dtype of `grad`.
    """
    if not self_size:
        return wide(grad).sum().to(grad.dtype)
    dy = wide(grad) if grad.is_floating_point() else grad
    return dy.new_zeros(self_size).scatter_add(dim, index.long(), dy).to(grad.dtype)


@npu_gather_backward.check
def _(grad, self_size, dim, index, sparse_grad):
    must.dtype("index", index, torch.int32, torch.int64)
    must.shape("grad", grad, tuple(index.shape))
    rank = max(len(self_size), 1)
    must.hold(-rank <= dim < rank, "dim", f"in [{-rank}, {rank - 1}]", dim)
    must.hold(
        len(self_size) == index.dim() or rank == 1,
        "self_size",
        f"of {index.dim()} sizes, as 'index'",
        list(self_size),
    )
    if must.has_data(index) and index.numel() and self_size:
        size = self_size[dim]
        inside = bool(((index >= 0) & (index < size)).all())
        must.hold(inside, "index", f"in [0, {size - 1}]", index.tolist())
    must.hold(
        not sparse_grad,
        "sparse_grad",
        "False (sparse gradients are not implemented here)",
        sparse_grad,
        ErrCode.NOT_SUPPORT,
    )


@npu_gather_backward.sharding
def _() -> Iterable[Sharding]:
    """Whole alone: `self_size` is that of the whole tensor."""
    return ()


npu_gather_backward.samples = [
    Sample(
        lambda make: (make(3, 2), [3, 4], 1, make(3, 2, dtype=torch.int64, low=0, high=4), False)
    ),
    Sample(
        lambda make: (make(2, 4), [3, 4], 0, make(2, 4, dtype=torch.int64, low=0, high=3), False)
    ),
]
