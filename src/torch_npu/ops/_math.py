"""Arithmetic that several folders share."""

from __future__ import annotations

import torch


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the precision that kernels accumulate in: fp32, or fp64 where it already is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
