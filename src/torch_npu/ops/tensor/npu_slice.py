"""npu_slice: a window of a tensor."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.tensor._dims import dense


@npu_op(
    "npu_slice(Tensor self, int[] offsets, int[] size) -> Tensor",
    out="npu_slice.out(Tensor self, int[] offsets, int[] size, *, Tensor(a!) out) -> Tensor(a!)",
    aclop=True,
)
def npu_slice(self, offsets, size):
    r"""A window of the tensor.

    $$ out_{i_1, \ldots, i_n} = self_{o_1 + i_1, \ldots, o_n + i_n},\quad i_d < size_d $$

    Args:
        self: any tensor.
        offsets: where the window starts in each dimension.
        size: how large it is in each dimension.

    Returns:
        A contiguous tensor of shape `size`. Upstream has no gradient for it.
    """
    window = tuple(slice(o, o + s) for o, s in zip(offsets, size, strict=True))
    return dense(self[window])


@npu_slice.check
def _(self, offsets, size):
    dims = self.dim()
    must.hold(len(offsets) == dims, "offsets", f"{dims} numbers", list(offsets))
    must.hold(len(size) == dims, "size", f"{dims} numbers", list(size))
    for start, length, have in zip(offsets, size, self.shape, strict=True):
        must.hold(0 <= start <= have, "offsets", f"within [0, {have}]", list(offsets))
        rest = have - start
        must.hold(0 <= length <= rest, "size", f"within [0, {rest}] at offset {start}", list(size))


npu_slice.samples = [
    Sample(lambda make: (make(2, 5, dtype=torch.float16), [0, 0], [2, 2])),
    Sample(lambda make: (make(4, 3, 5), [1, 0, 2], [2, 3, 3])),
]
