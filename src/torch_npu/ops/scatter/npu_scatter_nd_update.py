"""npu_scatter_nd_update and npu_scatter_nd_update_: slices replaced at indices of several dimensions."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import first_bad


def _check(self, indices, updates):
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bool)
    family = chips.current().family
    if family not in ("310P", "910A"):
        dtypes = (*dtypes, torch.bfloat16, torch.int64, torch.int8)
    if family in ("A2", "A3"):
        dtypes = (*dtypes, torch.int32, torch.int16)
    if family == "A5":
        dtypes = (*dtypes, torch.uint8, torch.float8_e5m2, torch.float8_e4m3fn)
    must.dtype("self", self, *dtypes)
    must.ndim("self", self, 1, 8)
    must.dtype("indices", indices, torch.int32, torch.int64)
    must.hold(
        indices.dim() >= 2,
        "indices",
        "a tensor of at least 2 dimensions",
        tuple(indices.shape),
        ErrCode.PARAM,
    )
    depth = indices.shape[-1]
    expected = f"of a last dimension of 1 to {self.dim()}, the rank of 'self'"
    must.hold(1 <= depth <= self.dim(), "indices", expected, tuple(indices.shape), ErrCode.PARAM)
    must.same_dtype("updates", updates, "self", self)
    must.shape("updates", updates, (*indices.shape[:-1], *self.shape[depth:]))
    if must.has_data(indices):
        host = indices.cpu().long()
        sizes = torch.tensor(self.shape[:depth])
        text = f"in [0, size) of the first {depth} dimensions {tuple(self.shape[:depth])} of 'self'"
        first_bad("indices", text, host, (host < 0) | (host >= sizes))


def _write(target, indices, updates):
    # contiguous, so that strides do not decide which update wins where an index occurs twice
    raw = (
        torch.uint8 if target.dtype.itemsize == 1 else target.dtype
    )  # index_put knows no 8-bit floats
    places = tuple(indices.long().contiguous().unbind(-1))
    must.hold(places, "indices", "of a last dimension of at least 1", tuple(indices.shape))
    target.view(raw).index_put_(places, updates.contiguous().view(raw))
    return target


_SAMPLES = [
    Sample(
        lambda make: (
            make(4, 5, 6),
            make(3, 2, dtype=torch.int64, low=0, high=4),
            make(3, 6),
        )
    ),
    Sample(
        lambda make: (
            make(8, 4, dtype=torch.float16),
            make(2, 3, 1, dtype=torch.int32, low=0, high=8),
            make(2, 3, 4, dtype=torch.float16),
        )
    ),
    Sample(
        lambda make: (
            make(3, 2, dtype=torch.int8, low=-9, high=9),
            make(2, 2, dtype=torch.int32, low=0, high=2),
            make(2, dtype=torch.int8, low=-9, high=9),
        )
    ),
]


@npu_op("npu_scatter_nd_update(Tensor self, Tensor indices, Tensor updates) -> Tensor")
def npu_scatter_nd_update(self, indices, updates):
    r"""A copy of `self` in which the slices at `indices` are replaced.

    $$ out[indices[i, 0], \ldots, indices[i, a - 1]] = updates[i] $$

    for each i over all dimensions of `indices` but the last, whose size is a.

    Args:
        self: the data, 1 to 8 dimensions; float32, float16, bool, and except on the Atlas inference and training series
            bfloat16, int64 and int8.
        indices: int32 or int64, at least 2 dimensions; the last one has at most as many elements as `self` has
            dimensions.
        updates: the dtype of `self`, the shape `indices.shape[:-1] + self.shape[a:]`.

    Returns:
        The updated copy.

    Differs from upstream: an index out of range raises. Where an index occurs twice, the result is that of one of
    the updates.
    """
    return _write(self.clone(), indices, updates)


@npu_scatter_nd_update.check
def _(self, indices, updates):
    _check(self, indices, updates)


npu_scatter_nd_update.samples = _SAMPLES


@npu_op("npu_scatter_nd_update_(Tensor(a!) self, Tensor indices, Tensor updates) -> Tensor(a!)")
def npu_scatter_nd_update_(self, indices, updates):
    """`npu_scatter_nd_update` in place: `self` is changed and returned, and left as it was when an argument is wrong."""
    return _write(self, indices, updates)


@npu_scatter_nd_update_.check
def _(self, indices, updates):
    _check(self, indices, updates)


npu_scatter_nd_update_.samples = _SAMPLES
