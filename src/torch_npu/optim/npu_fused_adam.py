"""NpuFusedAdam: torch.optim.Adam over combined tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_npu.optim._adam import AdamBase

__all__ = ["NpuFusedAdam"]


class NpuFusedAdam(AdamBase):
    """Adam; the update of torch.optim.Adam.

    Args:
        params: parameters or groups of parameters.
        lr: the learning rate.
        betas: the decay of the running averages of the gradient and of its square.
        eps: what is added to the denominator.
        weight_decay: the weight of the L2 penalty.
        amsgrad: whether the largest average of the square counts instead of the last.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        amsgrad=False,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad)

    def _update(
        self,
        group: dict[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        params: Sequence[torch.Tensor],
    ) -> None:
        self._advance(group, param, grad, state, penalty=group["weight_decay"], shrink=1.0)
