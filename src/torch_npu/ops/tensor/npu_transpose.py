"""npu_transpose: a contiguous copy with its dimensions in another order."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import Sharding
from torch_npu.ops.tensor._dims import check_permutation, dense


@npu_op(
    "npu_transpose(Tensor self, int[] perm, bool require_contiguous=True) -> Tensor",
    out="npu_transpose.out(Tensor self, int[] perm, bool require_contiguous=True, *, "
    "Tensor(a!) out) -> Tensor(a!)",
    aclop=True,
)
def npu_transpose(self, perm):
    r"""The dimensions in another order.

    $$ out_{i_{perm_1}, \ldots, i_{perm_n}} = self_{i_1, \ldots, i_n} $$

    Args:
        self: any tensor.
        perm: the order of the dimensions; negative numbers count from the end.
        require_contiguous: whether `self` is made contiguous first. Without it `self` must be
            contiguous already, or transposed: a tensor without gaps.

    Returns:
        A contiguous tensor.
    """
    return dense(self.permute(perm))


@npu_transpose.check
def _(self, perm, require_contiguous):
    check_permutation("perm", perm, self.dim(), negative=True)
    order = sorted(range(self.dim()), key=lambda d: (self.stride(d), self.size(d)), reverse=True)
    gapless = self.permute(order).is_contiguous()
    expected = "True for a tensor with gaps"
    must.hold(require_contiguous or gapless, "require_contiguous", expected, require_contiguous)


@npu_transpose.sharding
def _(self, perm):
    for place, dim in enumerate(perm):
        yield Sharding((place,), {"self": dim % self.ndim})


npu_transpose.samples = [
    Sample(lambda make: (make(2, 3, 5), [2, 0, 1])),
    Sample(lambda make: (make(4, 3).t(), [1, 0], False), name="a transposed input"),
]
