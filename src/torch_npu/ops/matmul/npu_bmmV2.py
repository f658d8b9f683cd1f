"""npu_bmmV2 and its two backwards: a batched product that may sum over batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import matmul
from torch_npu.ops._shared._gemm import product
from torch_npu.ops.matmul.npu_linear import cube_floats


def _result_shape(self: torch.Tensor, mat2: torch.Tensor) -> tuple[int, ...]:
    batch = torch.broadcast_shapes(self.shape[:-2], mat2.shape[:-2])
    return (*batch, self.shape[-2], mat2.shape[-1])


def _batched(self: torch.Tensor, mat2: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """The product, summed over the batch dimensions that `sizes` has as 1, and shaped like it."""
    full = product(self, mat2) if self.is_floating_point() else torch.matmul(self, mat2)
    if not sizes:
        return full.to(self.dtype)
    aligned = (1,) * (full.dim() - len(sizes)) + tuple(sizes)
    summed = [d for d in range(full.dim() - 2) if aligned[d] != full.shape[d]]
    if summed:
        full = full.sum(summed, keepdim=True)
    return full.reshape(tuple(sizes)).to(self.dtype)


def _check_factors(name: str, first: torch.Tensor, mat2: torch.Tensor) -> None:
    must.dtype(name, first, *cube_floats(), torch.int32)
    must.ndim(name, first, 2, 8)
    must.same_dtype("mat2", mat2, name, first)
    must.ndim("mat2", mat2, 2, 8)
    rows, depth = mat2.shape[-2], first.shape[-1]
    must.hold(rows == depth, "mat2", f"of {depth} rows (K of '{name}')", rows)
    batches = zip(reversed(first.shape[:-2]), reversed(mat2.shape[:-2]), strict=False)
    fits = all(a == b or a == 1 or b == 1 for a, b in batches)
    expected = f"of batch dimensions that broadcast with {tuple(first.shape[:-2])}"
    must.hold(fits, "mat2", expected, tuple(mat2.shape[:-2]))


def _check_backward(grad: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor) -> None:
    _check_factors("mat1", mat1, mat2)
    must.same_dtype("grad", grad, "mat1", mat1)
    must.shape("grad", grad, _result_shape(mat1, mat2))


def _check_sizes(self: torch.Tensor, mat2: torch.Tensor, name: str, sizes: Sequence[int]) -> None:
    if not sizes:
        return
    whole = _result_shape(self, mat2)
    aligned = (1,) * (len(whole) - len(sizes)) + tuple(sizes)
    fits = 2 <= len(sizes) <= len(whole) and aligned[-2:] == whole[-2:]
    fits = fits and all(a in (1, w) for a, w in zip(aligned, whole, strict=True))
    must.hold(fits, name, f"empty, or {whole} with batch dimensions as 1 or left out", list(sizes))


def _summed_shape(a: torch.Tensor, b: torch.Tensor, sizes: Sequence[int]) -> tuple[int, ...]:
    """The shape of the gradient with the dimensions that the forward summed over as ones."""
    whole = _result_shape(a, b)
    return whole if not sizes else (1,) * (len(whole) - len(sizes)) + tuple(sizes)


@npu_op(
    "npu_bmmV2(Tensor self, Tensor mat2, int[] output_sizes) -> Tensor",
    product=True,
    hf32="matmul",
    aclop=True,
)
def npu_bmmV2(self, mat2, output_sizes):
    r"""The product of two stacks of matrices, with broadcast batch dimensions.

    $$ y_{b,i,j} = \sum_k \mathrm{self}_{b,i,k} \, \mathrm{mat2}_{b,k,j} $$

    Args:
        self: (*, M, K), at least 2 dimensions; float16, float32, int32, and bfloat16 from A2 on.
        mat2: (*, K, N), of the dtype of `self`; the batch dimensions broadcast.
        output_sizes: empty, or the shape of the result; a batch dimension that it has as 1 (or
            leaves out in front) is summed over, which is what the gradient of a broadcast operand
            needs.

    Returns:
        y of the broadcast shape, or of `output_sizes`, in the dtype of `self`.

    Differs from upstream:
        bfloat16 is taken where the chip has it; upstream's page does not list it, the card does it.
    """
    return _batched(self, mat2, output_sizes)


@npu_bmmV2.check
def _(self, mat2, output_sizes):
    _check_factors("self", self, mat2)
    _check_sizes(self, mat2, "output_sizes", output_sizes)


@npu_bmmV2.backward
def _(grad, *, self, mat2, output_sizes, needs):
    a, b = self, mat2
    full = grad.reshape(_summed_shape(a, b, output_sizes))
    full = full.expand(_result_shape(a, b))
    return {
        "self": torch.ops.npu.npu_bmm_v2_mat1_backward(full, a, b, a.shape)
        if needs["self"]
        else None,
        "mat2": torch.ops.npu.npu_bmm_v2_mat2_backward(full, a, b, b.shape)
        if needs["mat2"]
        else None,
    }


@npu_bmmV2.sharding
def _(self, mat2, output_sizes):
    if not output_sizes:
        yield from matmul(self.shape, mat2.shape, ("self", "mat2"))


npu_bmmV2.samples = [
    Sample(lambda make: (make(3, 4, 5), make(3, 5, 2), [])),
    Sample(
        lambda make: (
            make(2, 3, 4, 5, dtype=torch.float16),
            make(5, 6, dtype=torch.float16),
            [],
        )
    ),
    Sample(lambda make: (make(2, 3, 4, 5), make(2, 3, 5, 2), [3, 4, 2])),
]


@npu_op(
    "npu_bmm_v2_mat1_backward(Tensor grad, Tensor mat1, Tensor mat2, SymInt[] size) -> Tensor",
    product=True,
    aclop=True,
)
def npu_bmm_v2_mat1_backward(grad, mat2, size):
    r"""The gradient of `npu_bmmV2` for its first operand.

    $$ \mathrm{grad} \cdot \mathrm{mat2}^T $$ summed to `size`.

    Args:
        grad: the gradient of the result, with all its batch dimensions.
        mat1: the first operand; only its shape matters.
        mat2: the second operand.
        size: the shape of the gradient, that of `mat1`.

    Returns:
        The gradient, of shape `size` and the dtype of `grad`.
    """
    return _batched(grad, mat2.mT, size)


@npu_bmm_v2_mat1_backward.check
def _(grad, mat1, mat2, size):
    _check_backward(grad, mat1, mat2)
    _check_sizes(grad, mat2.mT, "size", size)


npu_bmm_v2_mat1_backward.samples = [
    Sample(lambda make: (make(3, 4, 2), make(3, 4, 5), make(3, 5, 2), [3, 4, 5]))
]


@npu_op(
    "npu_bmm_v2_mat2_backward(Tensor grad, Tensor mat1, Tensor mat2, SymInt[] size) -> Tensor",
    product=True,
    aclop=True,
)
def npu_bmm_v2_mat2_backward(grad, mat1, size):
    r"""The gradient of `npu_bmmV2` for its second operand.

    $$ \mathrm{mat1}^T \cdot \mathrm{grad} $$ summed to `size`.

    Args:
        grad: the gradient of the result, with all its batch dimensions.
        mat1: the first operand.
        mat2: the second operand; only its shape matters.
        size: the shape of the gradient, that of `mat2`.

    Returns:
        The gradient, of shape `size` and the dtype of `mat1`.
    """
    return _batched(mat1.mT, grad, size)


@npu_bmm_v2_mat2_backward.check
def _(grad, mat1, mat2, size):
    _check_backward(grad, mat1, mat2)
    _check_sizes(mat1.mT, grad, "size", size)


npu_bmm_v2_mat2_backward.samples = [
    Sample(lambda make: (make(3, 4, 2), make(3, 4, 5), make(5, 2), [5, 2]))
]
