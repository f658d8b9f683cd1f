"""The products that the operators share: floats in fp32, integers exact, int4 weights unpacked.

The card's cube unit multiplies half precision into fp32 and int8 into int32. On a CPU without int8
instructions the fp32 BLAS is the fastest exact way to the latter: K is cut so that no partial sum
leaves the integers that fp32 represents.
"""

from __future__ import annotations

import functools
from typing import TypeVar

import torch

from softnpu import chips
from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared._packing import PER_WORD, unpack_int4

T = TypeVar("T")

#: fp32 holds every integer up to this one
EXACT = 2**24

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def dtype_of(code: int | torch.dtype | None, default: T) -> torch.dtype | int | T:
    """The torch dtype that an integer dtype argument names; another type's code as it is."""
    if code is None:
        return default
    found = getattr(torch, _dtypes.name(code) or "", None)
    return found if isinstance(found, torch.dtype) else code


def torch_dtype(code: int | torch.dtype | None, default: torch.dtype | None = None) -> torch.dtype:
    """The torch dtype of an argument that its check allowed no other type for."""
    found = dtype_of(code, default)
    assert isinstance(found, torch.dtype)
    return found


def stand_in(name: str, code_name: str, tensor: torch.Tensor, code: int | None) -> torch.Tensor:
    """What checks see of bytes that a code calls hifloat8: an 8-bit float of the same shape.

    A code may also repeat the tensor's own dtype.
    """
    if code is None or dtype_of(code, None) == tensor.dtype:
        return tensor
    expected = "None, or hifloat8 on Ascend950"
    known = chips.current().family == "A5" and _dtypes.name(code) == "hifloat8"
    must.hold(known, code_name, expected, _dtypes.text(code), ErrCode.NOT_SUPPORT)
    must.hold(
        tensor.element_size() == 1, name, "of one byte an element", tensor.dtype, ErrCode.TYPE
    )
    return tensor.view(torch.float8_e4m3fn)


def restored(tensor: torch.Tensor, code: int | None) -> torch.Tensor:
    """The values of a tensor whose bytes a code calls hifloat8; any other as it is."""
    if code is None or _dtypes.name(code) != "hifloat8":
        return tensor
    return _formats.decode(tensor.view(torch.uint8), "hifloat8")


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in fp32 (fp64 stays fp64)."""
    return torch.matmul(wide(a), wide(b))


@functools.cache
def _int8_instructions() -> bool:
    return torch.cpu._is_vnni_supported()


def _plain(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix with strides that `_int_mm` reads correctly: it goes wrong where two of them meet or one is 0."""
    rows, columns = matrix.shape
    if rows > 1 and columns > 1 and matrix.stride() == (1, rows):
        return matrix
    return matrix.contiguous().as_strided(matrix.shape, (columns, 1))


def int_product(a: torch.Tensor, b: torch.Tensor, bound: int = 2**14) -> torch.Tensor:
    """a @ b of small integers, exact in int32; `bound` is the largest magnitude of a product.

    Sums that leave int32 wrap, as the card's accumulator does.
    """
    plain = a.dtype == b.dtype == torch.int8 and a.dim() == b.dim() == 2
    if plain and a.device.type == "cpu" and a.numel() and b.numel() and _int8_instructions():
        return torch._int_mm(_plain(a), _plain(b))
    step, depth = EXACT // bound, a.shape[-1]
    total = torch.matmul(a[..., :step].float(), b[..., :step, :].float()).to(torch.int32)
    for start in range(step, depth, step):
        left, right = a[..., start : start + step], b[..., start : start + step, :]
        total = total + torch.matmul(left.float(), right.float()).to(torch.int32)
    return total


def is_transposed(matrix: torch.Tensor) -> bool:
    """Whether the last two dimensions are those of a contiguous matrix seen transposed."""
    rows, columns = matrix.shape[-2:]
    lying = matrix.stride(-2) == 1 and matrix.stride(-1) == rows
    return bool(lying and not (rows == 1 and columns == 1))


def matrix_shape(weight: torch.Tensor) -> tuple[int, int]:
    """(K, N) of a right matrix, counting eight int4 to an int32 along its contiguous dimension."""
    rows, columns = weight.shape[-2:]
    if weight.dtype != torch.int32:
        return rows, columns
    return (rows * PER_WORD, columns) if is_transposed(weight) else (rows, columns * PER_WORD)


def unpack_matrix(weight: torch.Tensor) -> torch.Tensor:
    """A right matrix with its int4 values (carried in int32) as int8; any other type as it is."""
    if weight.dtype != torch.int32:
        return weight
    return unpack_int4(weight.mT).mT if is_transposed(weight) else unpack_int4(weight)


def spread(values: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """Block values repeated along `dim` to cover `size` positions; the last may be cut."""
    blocks = values.shape[dim]
    if blocks in (1, size):
        return values
    return values.repeat_interleave(-(-size // blocks), dim).narrow(dim, 0, size)


def antiquantize(
    weight: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    group: int | None = None,
) -> torch.Tensor:
    """(weight + offset) * scale; scales of shape (G, N) each serve `group` rows of K.

    The result has the type of the scale, in which the cube unit takes it. The card computes float16
    in float16 and bfloat16 in fp32, rounding once; with fp32 scales (unpacked ones) nothing is
    rounded.
    """
    weight = unpack_matrix(weight)
    depth = weight.shape[-2]
    step = torch.float16 if scale.dtype == torch.float16 else torch.float32

    def over(values: torch.Tensor) -> torch.Tensor:
        values = values.to(step)
        if group and values.dim() > 1 and values.shape[-2] > 1:
            return values.repeat_interleave(group, -2).narrow(-2, 0, depth)
        return spread(values, depth, -2) if values.dim() > 1 else values

    moved = weight.to(step)
    if offset is not None:
        moved = moved + over(offset)
    return (moved * over(scale)).to(scale.dtype)
