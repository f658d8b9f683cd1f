"""NpuFusedAdamW: torch.optim.AdamW over combined tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_npu.optim.npu_fused_optim_base import (
    NpuFusedOptimizerBase,
    corrections,
    require,
    require_betas,
)

__all__ = ["NpuFusedAdamW"]


class NpuFusedAdamW(NpuFusedOptimizerBase):
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
        require(lr >= 0.0, "learning rate", lr)
        require(eps >= 0.0, "epsilon value", eps)
        require_betas(betas)
        require(weight_decay >= 0.0, "weight_decay value", weight_decay)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
        }
        super().__init__(params, defaults)

    def __setstate__(self, state):
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("amsgrad", False)

    def _state_names(self, group: Mapping[str, Any]) -> dict[str, float]:
        names = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
        return names | {"max_exp_avg_sq": 0.0} if group["amsgrad"] else names

    def _update(
        self,
        group: dict[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        params: Sequence[torch.Tensor],
    ) -> None:
        param.mul_(1 - group["lr"] * group["weight_decay"])
        beta1, beta2 = group["betas"]
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.mul_(beta1).add_(grad, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if group["amsgrad"]:
            second = torch.maximum(state["max_exp_avg_sq"], second, out=state["max_exp_avg_sq"])
        correction1, root2 = corrections(group["betas"], state["step"] + 1)
        denominator = (second.sqrt() / root2).add_(group["eps"])
        param.addcdiv_(first, denominator, value=-group["lr"] / correction1)
