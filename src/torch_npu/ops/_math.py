"""Arithmetic that several folders share."""

from __future__ import annotations

import torch


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the precision that kernels accumulate in: fp32, or fp64 where it already is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def halves_away(x: torch.Tensor) -> torch.Tensor:
    """fp32 rounded to bfloat16 with halves away from zero, as CAST_ROUND of the vector unit."""
    bits = x.view(torch.int32)
    raised = ((bits + 0x8000) & -0x10000).view(torch.float32)
    return torch.where(x.isfinite(), raised, x).to(torch.bfloat16)


def quotient(number: float, x: torch.Tensor) -> torch.Tensor:
    """number / x, rounded once: PyTorch takes such a quotient for the product with 1 / x."""
    return torch.full_like(x, number) / x
