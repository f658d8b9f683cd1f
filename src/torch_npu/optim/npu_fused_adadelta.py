"""NpuFusedAdadelta: torch.optim.Adadelta over combined tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_npu.optim.npu_fused_optim_base import NpuFusedOptimizerBase, require

__all__ = ["NpuFusedAdadelta"]


class NpuFusedAdadelta(NpuFusedOptimizerBase):
    """Adadelta; the update of torch.optim.Adadelta.

    Args:
        params: parameters or groups of parameters.
        lr: what scales a step before it is taken.
        rho: the decay of the running average of squared gradients.
        eps: what is added under the roots.
        weight_decay: the weight of the L2 penalty.
    """

    def __init__(self, params, lr=1.0, rho=0.9, eps=1e-6, weight_decay=0):
        require(lr >= 0.0, "learning rate", lr)
        require(0.0 <= rho <= 1.0, "rho value", rho)
        require(eps >= 0.0, "epsilon value", eps)
        require(weight_decay >= 0.0, "weight_decay value", weight_decay)
        defaults = {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def _state_names(self, group: Mapping[str, Any]) -> dict[str, float]:
        return {"square_avg": 0.0, "acc_delta": 0.0}

    def _update(
        self,
        group: dict[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        params: Sequence[torch.Tensor],
    ) -> None:
        torch.ops.softnpu.fused_adadelta(
            param,
            state["square_avg"],
            state["acc_delta"],
            grad,
            group["lr"],
            group["rho"],
            group["eps"],
            group["weight_decay"],
        )
