"""x * sigmoid(scale * x) and its derivative: what SiLU, Swish and the fast GELU have in common."""

from __future__ import annotations

import torch

#: the factor with which a sigmoid comes closest to the normal distribution's CDF
FAST_GELU = 1.702


def swish(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """x * sigmoid(scale * x)."""
    return x * torch.sigmoid(scale * x)


def swish_slope(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """The derivative of `swish` with respect to x."""
    gate = torch.sigmoid(scale * x)
    return gate * (1 + scale * x * (1 - gate))
