"""npu_scatter_list and npu_scatter_list_: a slice written into each tensor of a list."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op

_ARGUMENTS = "Tensor indices, Tensor updates, Tensor? mask=None, str reduce='update', int axis=-2"


def _written(self, indices, updates, mask, axis):
    starts = indices.tolist()
    chosen = [True] * len(self) if mask is None else mask.bool().tolist()
    for i, tensor in enumerate(self):
        if chosen[i]:
            first, size = starts[i] if indices.dim() == 2 else (starts[i], updates[i].shape[axis])
            tensor.narrow(axis, first, size).copy_(updates[i].narrow(axis, 0, size))


@npu_op(f"npu_scatter_list_(Tensor(a!)[] self, {_ARGUMENTS}) -> ()", ge="ScatterList")
def npu_scatter_list_(self, indices, updates, mask, axis):
    r"""Writes into tensor i of the list, from position `indices[i]` along `axis` on, slice i of the updates.

    Args:
        self: n tensors of one shape and dtype, at least 2 dimensions; written in place.
        indices: (n,), the positions, or (n, 2), positions and lengths; int32 or int64.
        updates: (n, ...), with the shape of a tensor but along `axis`; the dtype of `self`.
        mask: (n,) uint8 or bool, 0 for tensors that are left alone; None for none.
        reduce: "update".
        axis: -2 or -1, or what that is counted from the front.
    """
    _written(self, indices, updates, mask, axis)


@npu_scatter_list_.check
def _(self, indices, updates, mask, reduce, axis):
    _check(self, indices, updates, mask, reduce, axis)


@npu_scatter_list_.meta
def _():
    return None


@npu_op(f"npu_scatter_list(Tensor[] self, {_ARGUMENTS}) -> Tensor[]", ge="ScatterList")
def npu_scatter_list(self, indices, updates, mask, axis):
    r"""`npu_scatter_list_` on copies.

    Args:
        self: as there; left as it is.
        indices: as there.
        updates: as there.
        mask: as there.
        reduce: "update".
        axis: as there.

    Returns:
        The n tensors with the updates.
    """
    copies = [t.clone(memory_format=torch.contiguous_format) for t in self]
    _written(copies, indices, updates, mask, axis)
    return copies


@npu_scatter_list.check
def _(self, indices, updates, mask, reduce, axis):
    _check(self, indices, updates, mask, reduce, axis)


@npu_scatter_list.meta
def _(self):
    return [torch.empty_like(t, memory_format=torch.contiguous_format) for t in self]


def _check(self, indices, updates, mask, reduce, axis):
    must.hold(len(self) > 0, "self", "not empty", len(self))
    must.choice("reduce", reduce, ("update",))
    first = self[0]
    must.ndim("self", first, 2, 7)
    rank = first.dim()
    for tensor in self:
        must.same_dtype("self", tensor, "self[0]", first)
        must.shape("self", tensor, tuple(first.shape))
    must.hold(
        axis in (-2, -1, rank - 2, rank - 1), "axis", "the last dimension or the one before", axis
    )
    must.dtype("indices", indices, torch.int32, torch.int64)
    must.ndim("indices", indices, 1, 2)
    count = len(self)
    must.shape("indices", indices, (count,) if indices.dim() == 1 else (count, 2))
    must.same_dtype("updates", updates, "self[0]", first)
    shape = [count, *first.shape]
    place = axis if axis < 0 else axis - rank
    shape[place] = None
    must.shape("updates", updates, shape)
    must.dtype("mask", mask, torch.uint8, torch.bool)
    must.shape("mask", mask, (count,))
    if must.has_data(indices):
        size, length = first.shape[place], updates.shape[place]
        pairs = indices.tolist() if indices.dim() == 2 else [(i, length) for i in indices.tolist()]
        inside = all(a >= 0 and 0 <= n <= length and a + n <= size for a, n in pairs)
        must.hold(inside, "indices", f"such that each slice lies in [0, {size})", indices.tolist())


def _tensors(make):
    stack = make(3, 2, 5, 3)
    return [t.clone() for t in stack]


npu_scatter_list_.samples = npu_scatter_list.samples = [
    Sample(
        lambda make: (
            _tensors(make),
            make(3, dtype=torch.int32, low=0, high=4),
            make(3, 2, 1, 3),
            make(3, dtype=torch.uint8, low=0, high=2),
        )
    ),
    Sample(
        lambda make: (
            _tensors(make),
            make(3, dtype=torch.int64, low=0, high=2),
            make(3, 2, 5, 1),
        ),
        {"axis": -1},
    ),
]
