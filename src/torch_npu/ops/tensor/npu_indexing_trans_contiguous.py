"""npu_indexing_trans_contiguous: a strided slice into a tensor that is given."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.tensor.npu_indexing import npu_indexing


@npu_op(
    "npu_indexing_trans_contiguous.out(Tensor self, int[] begin, int[] end, int[] strides,"
    " int begin_mask=0, int end_mask=0, int ellipsis_mask=0, int new_axis_mask=0,"
    " int shrink_axis_mask=0, *, Tensor(a!) out) -> Tensor(a!)",
    ge="StridedSlice",
    aclop=True,
)
def npu_indexing_trans_contiguous(out, **slices):
    r"""`npu_indexing` into `out`.

    Args:
        self: any tensor.
        begin: as in `npu_indexing`.
        end: as there.
        strides: as there.
        begin_mask: as there.
        end_mask: as there.
        ellipsis_mask: as there.
        new_axis_mask: as there.
        shrink_axis_mask: as there.
        out: is written; with the shape of the slice and the dtype of `self`.

    Returns:
        `out`.
    """
    return out.copy_(npu_indexing.kernel(**slices))


@npu_indexing_trans_contiguous.check
def _(out, **slices):
    npu_indexing.parts["check"](**slices)
    must.same_dtype("out", out, "self", slices["self"])
    must.shape("out", out, tuple(npu_indexing.kernel(**slices).shape))


@npu_indexing_trans_contiguous.meta
def _(out):
    return out


npu_indexing_trans_contiguous.samples = [
    Sample(
        lambda make: (make(4, 6), [1, 0], [3, 6], [1, 2]),
        lambda make: {"out": make(2, 3)},
    ),
]
