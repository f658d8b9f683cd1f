"""NpuFusedRMSprop: torch.optim.RMSprop over combined tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_npu.optim._rmsprop import RMSpropBase

__all__ = ["NpuFusedRMSprop"]


class NpuFusedRMSprop(RMSpropBase):
    """RMSprop; the update of torch.optim.RMSprop.

    Args:
        params: parameters or groups of parameters.
        lr: the learning rate.
        alpha: the decay of the running averages.
        eps: what is added to the denominator.
        weight_decay: the weight of the L2 penalty.
        momentum: what of the last direction is kept.
        centered: whether the variance divides instead of the mean square.
    """

    def __init__(
        self,
        params,
        lr=1e-2,
        alpha=0.99,
        eps=1e-8,
        weight_decay=0,
        momentum=0,
        centered=False,
    ):
        super().__init__(params, lr, alpha, eps, weight_decay, momentum, centered)

    def _update(
        self,
        group: dict[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        params: Sequence[torch.Tensor],
    ) -> None:
        self._advance(group, param, grad, state, penalty=group["weight_decay"])
