"""scatter_update and scatter_update_: segments written into a cache at an offset for each row."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _segments
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops._shared._gemm import FLOAT8


@npu_op(
    "scatter_update_(Tensor(a!) self, Tensor indices, Tensor updates, int axis) -> Tensor(a!)",
    functional="scatter_update(Tensor self, Tensor indices, Tensor updates, int axis) -> Tensor",
)
def scatter_update_(self, indices, updates, axis):
    r"""Each row of `updates` replaces a segment of `self` along `axis`, in place.

    $$ self[i, \ldots, indices_i + k, \ldots] = updates[i, \ldots, k, \ldots] $$

    With (row, offset) pairs the segment goes to `self[row]` instead of `self[i]`.

    Args:
        self: the data, 2 to 8 dimensions, not empty; int8, float16, float32, int32 or (not on the Atlas training and
            inference series) bfloat16; on Ascend950 also uint8, float8_e4m3fn and float8_e5m2.
        indices: int32 or int64, an offset for each row of `updates`, or (rows, 2) with pairs of row and offset; a scalar
            for one row.
        updates: the dtype and rank of `self`; as long as `indices` in dimension 0, at most as long as `self` in `axis`
            and in dimension 0, and equal to `self` elsewhere.
        axis: the dimension that offsets count along, any but the first.

    Returns:
        `self`; it is left as it was when an argument is wrong.

    Differs from upstream: an index out of range raises; upstream leaves that to the caller. Where segments overlap, the
    result is that of one of them.
    """
    # 8-bit floats go in as bytes: there is no index_put for them
    raw = torch.uint8 if self.dtype in FLOAT8 else self.dtype
    _segments.write(self.view(raw), torch.atleast_1d(indices), updates.view(raw), axis)
    return self


@scatter_update_.check
def _(self, indices, updates, axis):
    more = (torch.uint8, *FLOAT8) if _chip.on_950() else ()
    must.dtype("self", self, torch.int8, torch.int32, *vector_floats(), *more)
    must.ndim("self", self, 2, 8)
    must.dtype("indices", indices, torch.int32, torch.int64)
    must.same_dtype("updates", updates, "self", self)
    for name, tensor in (("self", self), ("indices", indices), ("updates", updates)):
        must.hold(tensor.numel() > 0, name, "not empty", tuple(tensor.shape), ErrCode.PARAM)
    _segments.check(self, torch.atleast_1d(indices), updates, axis)


scatter_update_.samples = [
    Sample(
        lambda make: (
            make(2, 3, 8, 4),
            make(2, dtype=torch.int64, low=0, high=8),
            make(2, 3, 1, 4),
            -2,
        )
    ),
    Sample(
        lambda make: (
            make(3, 8, 4, dtype=torch.float16),
            make(2, 2, dtype=torch.int32, low=0, high=3),
            make(2, 5, 4, dtype=torch.float16),
            1,
        )
    ),
    Sample(
        lambda make: (
            make(3, 8, dtype=torch.int8, low=-9, high=9),
            make(3, dtype=torch.int32, low=0, high=6),
            make(3, 2, dtype=torch.int8, low=-9, high=9),
            -1,
        )
    ),
]
