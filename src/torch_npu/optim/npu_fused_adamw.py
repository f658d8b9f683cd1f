"""NpuFusedAdamW: torch.optim.AdamW over combined tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_npu.optim._adam import AdamBase

__all__ = ["NpuFusedAdamW"]


class NpuFusedAdamW(AdamBase):
    """Adam with decoupled weight decay; the update of torch.optim.AdamW.

    Args:
        params: parameters or groups of parameters.
        lr: the learning rate.
        betas: the decay of the running averages of the gradient and of its square.
        eps: what is added to the denominator.
        weight_decay: what the parameters shrink by, times `lr`.
        amsgrad: whether the largest average of the square counts instead of the last.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=1e-2,
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
        shrink = 1 - group["lr"] * group["weight_decay"]
        self._advance(group, param, grad, state, penalty=0.0, shrink=shrink)
