"""NpuFusedSGD: torch.optim.SGD over combined tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import required

from torch_npu.optim.npu_fused_optim_base import NpuFusedOptimizerBase, require
from torch_npu.utils._error_code import ErrCode, pta_error

__all__ = ["NpuFusedSGD"]


class NpuFusedSGD(NpuFusedOptimizerBase):
    """Stochastic gradient descent with momentum; the update of torch.optim.SGD.

    Args:
        params: parameters or groups of parameters.
        lr: the learning rate.
        momentum: what of the last direction is kept.
        dampening: what of the gradient is left out of the direction.
        weight_decay: the weight of the L2 penalty.
        nesterov: whether the step looks ahead; needs a momentum and no dampening.
    """

    def __init__(
        self,
        params,
        lr=required,
        momentum=0.0,
        dampening=0.0,
        weight_decay=0.0,
        nesterov=False,
    ):
        require(lr is required or lr >= 0.0, "learning rate", lr)
        require(momentum >= 0.0, "momentum value", momentum)
        require(weight_decay >= 0.0, "weight_decay value", weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                "Nesterov momentum requires a momentum and zero dampening"
                + pta_error(ErrCode.VALUE)
            )
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def __setstate__(self, state):
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("nesterov", False)

    def step(self, closure=None):
        """One update; returns what the closure returns."""
        return super().step(closure)

    def _state_names(self, group: Mapping[str, Any]) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if group["momentum"] != 0 else {}

    def _steps_done(self, p: torch.Tensor) -> int:
        """torch.optim.SGD counts no steps: a buffer means that there was one."""
        state = self.state.get(p, {})
        done = 0 if state.get("momentum_buffer") is None else 1
        return max(done, super()._steps_done(p))

    def _update(
        self,
        group: dict[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        params: Sequence[torch.Tensor],
    ) -> None:
        torch.ops.softnpu.fused_sgd(
            param,
            state.get("momentum_buffer"),
            grad,
            group["lr"],
            group["momentum"],
            group["dampening"],
            group["weight_decay"],
            group["nesterov"],
            state["step"] == 0,
        )
