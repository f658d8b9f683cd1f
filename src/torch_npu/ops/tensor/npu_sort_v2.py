"""npu_sort_v2: sorted values without their indices."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_sort_v2(Tensor self, int dim=-1, bool descending=False) -> Tensor",
    out="npu_sort_v2.out(Tensor self, int dim=-1, bool descending=False, *, Tensor(a!) out) "
    "-> Tensor(a!)",
    aclop=True,
)
def npu_sort_v2(self, dim, descending):
    r"""Sorted values along a dimension.

    $$ out = \mathrm{sort}_{dim}(self) $$

    Args:
        self: any real tensor.
        dim: the dimension to sort along. The page knows the last one only,
            upstream's tests all of them.
        descending: from the largest down.

    Returns:
        A contiguous tensor of the shape and dtype of `self`.
    """
    return torch.sort(self.contiguous(), dim=dim, descending=descending).values.contiguous()


@npu_sort_v2.check
def _(self, dim):
    fits = not self.dtype.is_complex
    must.hold(fits, "self", "of real numbers", self.dtype, ErrCode.TYPE)
    count = max(self.dim(), 1)
    must.hold(-count <= dim < count, "dim", f"within [{-count}, {count - 1}]", dim)


npu_sort_v2.samples = [
    Sample(lambda make: (make(3, 7),)),
    Sample(lambda make: (make(3, 7, dtype=torch.float16), 0, True), name="descending"),
]
