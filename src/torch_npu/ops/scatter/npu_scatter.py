"""npu_scatter: one value along a dimension."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_scatter(Tensor self, Tensor indices, Tensor updates, int dim) -> Tensor",
    ge="ArgMaxGrad",
    aclop=True,
)
def npu_scatter(self, indices, updates, dim):
    r"""Writes one value into each line along `dim`: the gradient of a maximum.

    $$ y_{\ldots, \mathrm{indices}_{\ldots}, \ldots} = \mathrm{updates}_{\ldots} $$

    Args:
        self: the tensor, most often zeros.
        indices: where in its line each value goes, with the shape of `self` without `dim`; int32.
        updates: the values, with the shape of `indices` and the dtype of `self`.
        dim: the dimension.

    Returns:
        y, a copy of `self` with the values written.
    """
    return self.scatter(dim, indices.long().unsqueeze(dim), updates.unsqueeze(dim))


@npu_scatter.check
def _(self, indices, updates, dim):
    must.ndim("self", self, 1, 8)
    rank = self.dim()
    must.hold(-rank <= dim < rank, "dim", f"in [{-rank}, {rank - 1}]", dim)
    rest = list(self.shape)
    size = rest.pop(dim)
    must.dtype("indices", indices, torch.int32)
    must.shape("indices", indices, rest)
    must.same_dtype("updates", updates, "self", self)
    must.shape("updates", updates, rest)
    if must.has_data(indices) and indices.numel():
        inside = bool(((indices >= 0) & (indices < size)).all())
        must.hold(inside, "indices", f"in [0, {size - 1}]", indices.tolist())


npu_scatter.samples = [
    Sample(
        lambda make: (make(3, 4), make(3, dtype=torch.int32, low=0, high=4), make(3), 1),
    ),
    Sample(
        lambda make: (make(2, 3, 4), make(2, 4, dtype=torch.int32, low=0, high=3), make(2, 4), -2),
    ),
]
