"""What the RMS norms share that quantize their result."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._shared import _chip, _formats

Optional = torch.Tensor | None


def normed(
    x: torch.Tensor, gamma: torch.Tensor, beta: Optional, epsilon: float, dims: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x / rms(x) * gamma + beta over the last `dims` dimensions (those of gamma), and 1 / rms(x); unrounded."""
    dims = gamma.dim() if dims is None else dims
    row = x.shape[x.dim() - dims :]
    x = wide(x)
    mean = x.square().mean(tuple(range(-dims, 0)), keepdim=True) + epsilon
    rstd = torch.rsqrt(mean.double()).to(x.dtype)
    y = x * rstd * wide(gamma).reshape(row)
    return y if beta is None else y + wide(beta).reshape(row), rstd


def affine(y: torch.Tensor, scale: torch.Tensor, offset: Optional, divide: bool) -> torch.Tensor:
    """y / scale + offset, or y * scale + offset."""
    y = y / wide(scale) if divide else y * wide(scale)
    return y if offset is None else y + offset.to(y.dtype)


def check_like(name: str, tensor: Optional, gamma: torch.Tensor, single: bool = False) -> None:
    """The tensor (if given) has the shape of gamma; with `single`, one element will do."""
    if tensor is not None and not (single and tensor.numel() == 1):
        must.shape(name, tensor, tuple(gamma.shape))


def check_row(name: str, tensor: Optional, x: torch.Tensor) -> None:
    """The tensor (if given) is a row of the last dimension of x, perhaps with a 1 before it."""
    if tensor is None:
        return
    size = x.shape[-1]
    fits = tuple(tensor.shape) in ((size,), (1, size))
    must.hold(fits, name, f"of shape ({size},) or (1, {size})", tuple(tensor.shape), ErrCode.PARAM)


def check_mx_norm(x: torch.Tensor, name: str, gamma: torch.Tensor, beta: Optional) -> None:
    """What the norms before a microscaling format ask of their tensors."""
    must.dtype(name, x, torch.float16, torch.bfloat16)
    must.ndim(name, x, 1, 7)
    must.dtype("gamma", gamma, x.dtype, torch.float32)
    must.shape("gamma", gamma, (x.shape[-1],))
    must.same_dtype("beta", beta, "gamma", gamma)
    must.shape("beta", beta, (x.shape[-1],))


def formats() -> tuple[str, ...]:
    """int8, and on Ascend950 its 8-bit floats."""
    return _chip.formats("int8")


def quantized(values: torch.Tensor, code: int | None) -> torch.Tensor:
    """Rounds to the format that an argument names, int8 by default."""
    return _formats.encode(values, _formats.chosen(code))
