"""npu_stride_copy: a strided view, made contiguous."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op

_ARGUMENTS = "Tensor self, int[] shape, int[] stride, Scalar storage_offset"


@npu_op(
    f"npu_stride_copy({_ARGUMENTS}) -> Tensor",
    out=f"npu_stride_copy.out({_ARGUMENTS}, *, Tensor(a!) out) -> Tensor(a!)",
    ge="AsStrided",
    aclop=True,
)
def npu_stride_copy(self, shape, stride, storage_offset):
    r"""A contiguous copy of `self.as_strided(shape, stride, storage_offset)`.

    Args:
        self: a tensor whose storage is read.
        shape: the sizes of the result.
        stride: its strides in the storage.
        storage_offset: its first element in the storage.

    Returns:
        The copy, of the dtype of `self`.
    """
    view = torch.as_strided(self, shape, stride, int(storage_offset))
    return view.clone(memory_format=torch.contiguous_format)


@npu_stride_copy.check
def _(shape, stride, storage_offset):
    same = len(shape) == len(stride)
    must.hold(same, "stride", f"of {len(shape)} numbers, as 'shape'", list(stride))
    must.hold(storage_offset >= 0, "storage_offset", "not negative", storage_offset)


@npu_stride_copy.meta
def _(self, shape):
    return self.new_empty(shape)


npu_stride_copy.samples = [
    Sample(lambda make: (make(4, 6), [2, 3], [6, 2], 1)),
    Sample(lambda make: (make(12), [3, 3], [1, 2], 0)),
]
