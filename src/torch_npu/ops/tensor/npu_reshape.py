"""npu_reshape: a copy with other sizes."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.tensor._dims import check_sizes, dense


@npu_op(
    "npu_reshape(Tensor self, int[] shape, bool can_refresh=False) -> Tensor",
    out="npu_reshape.out(Tensor self, int[] shape, bool can_refresh=False, *, Tensor(a!) out) "
    "-> Tensor(a!)",
)
def npu_reshape(self, shape):
    r"""The same elements in the same order, in other sizes: $out_{flat\ i} = self_{flat\ i}$.

    Args:
        self: any tensor.
        shape: the sizes of the result, none negative.
        can_refresh: promises that only the description has to change, which holds for contiguous
            tensors; with others it is an error.

    Returns:
        A contiguous copy.

    Differs from upstream:
        With `can_refresh` upstream leaves the result unwritten; here it holds the elements.
    """
    return dense(self.reshape(shape))


@npu_reshape.check
def _(self, shape, can_refresh):
    check_sizes("shape", shape, self.numel())
    expected = "False for a tensor that is not contiguous"
    must.hold(not can_refresh or self.is_contiguous(), "can_refresh", expected, can_refresh)


npu_reshape.samples = [
    Sample(lambda make: (make(2, 8), [4, 4])),
    Sample(lambda make: (make(2, 8), [16], True), name="refresh"),
]
