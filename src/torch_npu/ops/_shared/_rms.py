"""What the RMS norms share: their statistics and the constraints on gamma."""

from __future__ import annotations

from typing import NamedTuple

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._shared._floats import vector_floats


def rms_normalize(
    x: torch.Tensor, gamma: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x / rms(x) over the trailing dimensions that gamma covers, and 1 / rms(x), both unrounded."""
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    x = wide(x)
    rstd = torch.rsqrt(x.square().mean(dims, keepdim=True) + epsilon)
    return x * rstd, rstd


def check_gamma(name: str, x: torch.Tensor, gamma: torch.Tensor, single: bool = False) -> None:
    """x is a float tensor of 1 to 8 dimensions; gamma has its dtype (or float32) and its trailing shape."""
    must.dtype(name, x, *vector_floats())
    must.ndim(name, x, 1, 8)
    if not single or gamma.dtype != torch.float32:
        must.same_dtype("gamma", gamma, name, x)
    must.ndim("gamma", gamma, 1, x.dim())
    must.shape("gamma", gamma, tuple(x.shape[x.dim() - gamma.dim() :]))


class Roundings(NamedTuple):
    """Where the card's kernel rounds, beside the results."""

    exact_sum: bool  # the norm works on the sum before its rounding
    stepwise: bool  # x / rms(x) is rounded before gamma is applied


def roundings(dtype: torch.dtype, cast: bool = False) -> Roundings:
    """Those of AddRmsNorm, or of AddRmsNormCast.

    The vector units of A2 and A3 add float16 as it is and bfloat16 in fp32; Ascend950 works in fp32 throughout.
    """
    if chips.current().family == "A5":
        return Roundings(True, False)
    if dtype == torch.bfloat16:
        return Roundings(True, not cast)
    return Roundings(False, dtype == torch.float16)


def add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float, places: Roundings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y unrounded, rstd and the sum x = x1 + x2, which is rounded to the dtype of x1."""
    exact = wide(x1) + wide(x2)
    x = exact.to(x1.dtype)
    normed, rstd = rms_normalize(exact if places.exact_sum else x, gamma, epsilon)
    if places.stepwise:
        normed = wide(normed.to(x1.dtype))
    return normed * wide(gamma), rstd, x


def native_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float, places: Roundings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`add_rms_norm` by the C++ kernel, with y rounded."""
    return torch.ops.softnpu.rms_norm(x1, x2, gamma, epsilon, 0.0, *places)


def check_addends(x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor) -> None:
    """x1 and x2 are alike and gamma fits them."""
    check_gamma("x1", x1, gamma)
    must.same_dtype("x2", x2, "x1", x1)
    must.shape("x2", x2, tuple(x1.shape))
