"""npu_masked_fill_range: ranges of a dimension filled with a value."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_masked_fill_range(Tensor self, Tensor start, Tensor end, Tensor value, int axis=-1)"
    " -> Tensor",
    aclop=True,
)
def npu_masked_fill_range(self, start, end, value, axis):
    r"""Fills, along a dimension, the positions in [start, end) with a value, range after range.

    Along the last dimension the ranges of column j belong to slice j of the first dimension; along
    any other they belong to the whole tensor.

    Args:
        self: 1 to 3 dimensions; float16, float32, int8 or int32.
        start: (ranges, N) int32; N is the first size of `self` where `axis` is the last of several
            dimensions.
        end: as `start`.
        value: the value of each range, (ranges,), of the dtype of `self`.
        axis: the dimension.

    Returns:
        The filled copy.
    """
    rank = self.dim()
    axis = axis % rank
    places = torch.arange(self.shape[axis], device=self.device)
    out = self.clone(memory_format=torch.contiguous_format)
    for r in range(start.shape[0]):
        hit = (places >= start[r, :, None]) & (places < end[r, :, None])
        if rank > 1 and axis == rank - 1:
            hit = hit.reshape(hit.shape[0], *[1] * (rank - 2), hit.shape[1])
        else:
            hit = hit.any(0).reshape([-1 if d == axis else 1 for d in range(rank)])
        out = torch.where(hit, value[r], out)
    return out


@npu_masked_fill_range.check
def _(self, start, end, value, axis):
    must.dtype("self", self, torch.float16, torch.float32, torch.int8, torch.int32)
    must.ndim("self", self, 1, 3)
    rank = self.dim()
    must.hold(-rank <= axis < rank, "axis", f"in [{-rank}, {rank - 1}]", axis)
    must.dtype("start", start, torch.int32)
    must.dtype("end", end, torch.int32)
    must.ndim("start", start, 2)
    by_row = rank > 1 and axis % rank == rank - 1
    must.shape("start", start, (None, self.shape[0] if by_row else None))
    must.shape("end", end, tuple(start.shape))
    must.same_dtype("value", value, "self", self)
    must.shape("value", value, (start.shape[0],))


def _ranges(make, *values):
    return torch.tensor(values, dtype=torch.int32).to(make(1).device)


npu_masked_fill_range.samples = [
    Sample(
        lambda make: (
            make(2, 3, 8),
            _ranges(make, [0, 2], [5, 6]),
            _ranges(make, [3, 4], [6, 8]),
            make(2),
        )
    ),
    Sample(
        lambda make: (make(6, 3), _ranges(make, [1, 4]), _ranges(make, [2, 6]), make(1), 0),
    ),
]
