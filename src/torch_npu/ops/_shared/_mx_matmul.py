"""The microscaling (MX) forms of Ascend950: 8-bit and 4-bit floats whose scales are powers of two for 32 depths each.

A scale is a byte e (float8_e8m0fnu) that stands for 2^(e - 127), 255 for NaN. Upstream's quantizers write them in
pairs, two neighboring blocks of K together: (*, M, ceil(K / 64), 2) beside the rows of x and (*, ceil(K / 64), N, 2)
beside the columns of a weight. 4-bit floats come two to a byte, along the contiguous dimension of their matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softnpu import chips
from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared._gemm import FLOAT8, is_transposed

#: depths that share a scale, and scales that lie together
BLOCK, PAIR = 32, 2

FLOAT4 = ("float4_e2m1fn_x2", "float4_e1m2fn_x2")

_BYTES = (torch.uint8, torch.int8)


def asked(scale_code: int | None, scale: torch.Tensor | None = None) -> bool:
    """Whether a scale, by its type or by the code beside it, is a power of two."""
    if scale is not None and scale.dtype == torch.float8_e8m0fnu:
        return True
    return scale_code is not None and _dtypes.name(scale_code) == "float8_e8m0fnu"


def check_chip(code_name: str) -> None:
    """Only Ascend950 has these forms."""
    fits = chips.current().family == "A5"
    must.hold(fits, code_name, "None on this chip", "float8_e8m0fnu", ErrCode.NOT_SUPPORT)


def powers(scale: torch.Tensor) -> torch.Tensor:
    """2^(e - 127) of the bytes of a scale, in fp32."""
    return scale.view(torch.uint8).view(torch.float8_e8m0fnu).float()


def _format(tensor: torch.Tensor, code: int | None) -> str | None:
    """The 4-bit format of a matrix; None for one of 8-bit floats."""
    name = None if code is None else _dtypes.name(code)
    if tensor.dtype in _dtypes.FLOAT4:
        return FLOAT4[0]
    return name if name in FLOAT4 else None


def is_float4(tensor: torch.Tensor, code: int | None) -> bool:
    """Whether a matrix holds 4-bit floats, two to a byte."""
    return _format(tensor, code) is not None


def shape(tensor: torch.Tensor, code: int | None) -> tuple[int, ...]:
    """The shape of a matrix in values: 4-bit floats count twice along the contiguous dimension."""
    sizes = list(tensor.shape)
    if _format(tensor, code):
        sizes[-2 if is_transposed(tensor) else -1] *= 2
    return tuple(sizes)


def values(tensor: torch.Tensor, code: int | None) -> torch.Tensor:
    """The fp32 values of a matrix."""
    name = _format(tensor, code)
    if name is None:
        return tensor.float()
    if is_transposed(tensor):
        return _formats.decode(tensor.mT.contiguous().view(torch.uint8), name).mT
    return _formats.decode(tensor.contiguous().view(torch.uint8), name)


def left(x: torch.Tensor, code: int | None, scale: torch.Tensor) -> torch.Tensor:
    """The rows x with their scales (*, M, ceil(K / 64), 2) multiplied in."""
    found = values(x, code)
    blocks = powers(scale).flatten(-2).repeat_interleave(BLOCK, -1)
    return found * blocks[..., : found.shape[-1]]


def right(weight: torch.Tensor, code: int | None, scale: torch.Tensor) -> torch.Tensor:
    """The columns of a weight with their scales (*, ceil(K / 64), N, 2) multiplied in."""
    found = values(weight, code)
    blocks = powers(scale).mT.flatten(-3, -2).repeat_interleave(BLOCK, -2)
    return found * blocks[..., : found.shape[-2], :]


def check_matrix(name: str, code_name: str, tensor: torch.Tensor, code: int | None) -> None:
    """A matrix of 8-bit floats, or bytes that a code calls 4-bit floats."""
    if _format(tensor, code):
        must.dtype(name, tensor, *_BYTES, *_dtypes.FLOAT4)
        plain = tensor.is_contiguous() or is_transposed(tensor)
        must.hold(
            plain, name, "contiguous or the transpose of it, for 4-bit floats", tensor.stride()
        )
    else:
        expected = "None, " + must.one_of(FLOAT4)
        known = code is None or _dtypes.name(code) in ("float8_e4m3fn", "float8_e5m2")
        must.hold(known, code_name, expected, _dtypes.text(code), ErrCode.NOT_SUPPORT)
        must.dtype(name, tensor, *FLOAT8)


def check_scale(
    name: str,
    code_name: str,
    scale: torch.Tensor | None,
    code: int | None,
    wanted: Sequence[int | None],
) -> None:
    """A scale of powers of two, of the wanted shape."""
    must.present(name, scale, "in the microscaling form")
    assert scale is not None
    fits = asked(code, scale)
    must.hold(fits, code_name, "float8_e8m0fnu for both scales or for none", _dtypes.text(code))
    must.dtype(name, scale, *_BYTES, torch.float8_e8m0fnu)
    must.shape(name, scale, wanted)


def pairs(depth: int) -> int:
    """How many pairs of blocks cover K."""
    return -(-depth // (BLOCK * PAIR))
