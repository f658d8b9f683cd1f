"""npu_transpose_trans_contiguous: a permuted copy into a tensor that is given."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_transpose_trans_contiguous.out(Tensor self, int[] perm, bool require_contiguous=True, *,"
    " Tensor(a!) out) -> Tensor(a!)",
    ge="Transpose",
    aclop=True,
)
def npu_transpose_trans_contiguous(self, perm, out):
    r"""Writes the permuted tensor into `out`.

    Args:
        self: any tensor.
        perm: the dimension of `self` for each of the result.
        require_contiguous: whether upstream may first make `self` contiguous; the result is the same.
        out: is written; with the permuted shape and the dtype of `self`.

    Returns:
        `out`.
    """
    return out.copy_(self.permute(perm))


@npu_transpose_trans_contiguous.check
def _(self, perm, require_contiguous, out):
    rank = self.dim()
    places = sorted(p % rank for p in perm if -rank <= p < rank)
    fits = len(perm) == rank and places == list(range(rank))
    must.hold(fits, "perm", f"a permutation of the {rank} dimensions", list(perm))
    must.hold(
        isinstance(require_contiguous, bool), "require_contiguous", "a bool", require_contiguous
    )
    must.same_dtype("out", out, "self", self)
    must.shape("out", out, [self.shape[p] for p in perm])


@npu_transpose_trans_contiguous.meta
def _(out):
    return out


npu_transpose_trans_contiguous.samples = [
    Sample(lambda make: (make(2, 3, 4), [2, 0, 1]), lambda make: {"out": make(4, 2, 3)}),
]
