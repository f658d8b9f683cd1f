"""_npu_index_add and _npu_index_add_: rows added by index."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "_npu_index_add(Tensor self, Tensor index, Tensor source, *, Scalar alpha=1) -> Tensor",
    inplace="_npu_index_add_(Tensor(a!) self, Tensor index, Tensor source, *, Scalar alpha=1)"
    " -> Tensor(a!)",
)
def _npu_index_add(self, index, source, alpha):
    r"""Adds the rows of a tensor to those that the index names; the same row may come several times.

    $$ y_{\mathrm{index}_i} = \mathrm{self}_{\mathrm{index}_i} + \alpha \sum_i \mathrm{source}_i $$

    Args:
        self: at least one dimension.
        index: rows of `self`, int32 or int64, of any shape.
        source: the values, of shape `index.shape + self.shape[1:]` and the dtype of `self`.
        alpha: their factor.

    Returns:
        y, with the shape and dtype of `self`.
    """
    floating = self.is_floating_point()
    base, added = (wide(t) if floating else t for t in (self, source))
    rows = added.reshape(-1, *self.shape[1:]) * alpha
    flat = index.reshape(-1).long()
    return base.index_add(0, flat, rows.to(base.dtype)).to(self.dtype)


@_npu_index_add.check
def _(self, index, source):
    must.ndim("self", self, 1, 8)
    must.dtype("index", index, torch.int32, torch.int64)
    must.same_dtype("source", source, "self", self)
    must.shape("source", source, (*index.shape, *self.shape[1:]))
    if must.has_data(index) and index.numel():
        size = self.shape[0]
        inside = bool(((index >= 0) & (index < size)).all())
        must.hold(inside, "index", f"in [0, {size - 1}]", index.tolist())


_npu_index_add.samples = [
    Sample(
        lambda make: (make(4, 3), make(6, dtype=torch.int64, low=0, high=4), make(6, 3)),
        {"alpha": 2},
    ),
    Sample(
        lambda make: (make(4, 3), make(2, 3, dtype=torch.int32, low=0, high=4), make(2, 3, 3)),
    ),
]
