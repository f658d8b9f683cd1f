"""What the fused Adam and AdamW share: everything but the weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torch_npu.optim.npu_fused_optim_base import (
    NpuFusedOptimizerBase,
    corrections,
    require,
    require_betas,
)


class AdamBase(NpuFusedOptimizerBase):
    """The hyperparameters, states and step of Adam; a subclass says what the weight decay acts on."""

    def __init__(self, params, lr, betas, eps, weight_decay, amsgrad):
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

    def _advance(
        self,
        group: Mapping[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: Mapping[str, Any],
        penalty: float,
        shrink: float,
    ) -> None:
        """Moments and parameters; `penalty` of these is in the gradient, `shrink` multiplies them."""
        correction1, root2 = corrections(group["betas"], state["step"] + 1)
        torch.ops.softnpu.fused_adam(
            param,
            state["exp_avg"],
            state["exp_avg_sq"],
            state["max_exp_avg_sq"] if group["amsgrad"] else None,
            grad,
            *group["betas"],
            group["lr"] / correction1,
            root2,
            group["eps"],
            penalty,
            shrink,
        )
