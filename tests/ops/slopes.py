"""Derivatives of reference loops by central differences in fp64: what gradients of operators are compared with.

The loops know nothing of autograd, so neither the operator's forward nor PyTorch's derivatives take part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def check_gradients(
    value: Callable[..., torch.Tensor],
    tensors: Sequence[torch.Tensor],
    weights: torch.Tensor,
    gradients: Sequence[torch.Tensor],
    tolerance: float = 1e-4,
    step: float = 1e-5,
) -> None:
    """`gradients`, one for each of `tensors`, against the slopes of sum(value(*tensors) * weights).

    Each tensor is moved along three random directions of its own.
    """
    exact = [t.detach().cpu().double() for t in tensors]
    for place, gradient in enumerate(gradients):
        for seed in range(3):
            source = torch.Generator().manual_seed(100 * place + seed)
            way = torch.randn(exact[place].shape, generator=source, dtype=torch.float64)

            def moved(by: float, place: int = place, way: torch.Tensor = way) -> float:
                given = [t + by * way if i == place else t for i, t in enumerate(exact)]
                return float((value(*given) * weights.detach().cpu().double()).sum())

            want = (moved(step) - moved(-step)) / (2 * step)
            found = float((gradient.detach().cpu().double() * way).sum())
            scale = float(gradient.detach().cpu().double().norm() * way.norm()) + 1e-3
            assert abs(found - want) <= tolerance * scale, (place, seed, found, want)
