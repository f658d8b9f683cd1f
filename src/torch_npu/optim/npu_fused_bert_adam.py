"""NpuFusedBertAdam: BERT's Adam, without bias correction, over combined tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim.optimizer import required

from torch_npu.optim.npu_fused_optim_base import NpuFusedOptimizerBase, require

__all__ = ["NpuFusedBertAdam"]

#: schedule -> what multiplies the learning rate after the warm-up, at a share x of all steps
SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "warmup_cosine": lambda x, warmup: 0.5 * (1.0 + math.cos(math.pi * x)),
    "warmup_constant": lambda x, warmup: 1.0,
    "warmup_linear": lambda x, warmup: max((x - 1.0) / (warmup - 1.0), 0.0),
    "warmup_poly": lambda x, warmup: (1.0 - x) ** 0.5,
}


def scheduled(group: Mapping[str, Any], step: int) -> float:
    """The learning rate at a step."""
    if group["t_total"] == -1:
        return group["lr"]
    x, warmup = step / group["t_total"], group["warmup"]
    factor = x / warmup if x < warmup else SCHEDULES[group["schedule"]](x, warmup)
    return group["lr"] * factor


class NpuFusedBertAdam(NpuFusedOptimizerBase):
    """Adam as BERT was trained with it: no bias correction, decoupled decay, a learning rate schedule.

    Args:
        params: parameters or groups of parameters.
        lr: the learning rate.
        warmup: the share of `t_total` over which the rate rises; -1 for none.
        t_total: the number of steps of the schedule; -1 for a constant rate.
        schedule: "warmup_cosine", "warmup_constant", "warmup_linear" or "warmup_poly".
        b1: the decay of the running average of the gradient.
        b2: the decay of the running average of its square.
        e: what is added to the denominator.
        weight_decay: what the parameters shrink by, times `lr`.
        max_grad_norm: the norm that the combined gradients are clipped to; -1 for none.
    """

    def __init__(
        self,
        params,
        lr=required,
        warmup=-1,
        t_total=-1,
        schedule="warmup_linear",
        b1=0.9,
        b2=0.999,
        e=1e-6,
        weight_decay=0.01,
        max_grad_norm=1.0,
    ):
        require(lr is required or lr >= 0.0, "learning rate", lr)
        require(warmup == -1 or 0.0 <= warmup < 1.0, "warmup", warmup)
        require(schedule in SCHEDULES, "schedule parameter", schedule)
        require(0.0 <= b1 < 1.0, "b1 parameter", b1)
        require(0.0 <= b2 < 1.0, "b2 parameter", b2)
        require(e >= 0.0, "epsilon value", e)
        defaults = {
            "lr": lr,
            "schedule": schedule,
            "warmup": warmup,
            "t_total": t_total,
            "b1": b1,
            "b2": b2,
            "e": e,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
        }
        self.max_grad_norm = max_grad_norm
        super().__init__(params, defaults)

    def _state_names(self, group: Mapping[str, Any]) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def _update(
        self,
        group: dict[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        params: Sequence[torch.Tensor],
    ) -> None:
        torch.ops.softnpu.fused_bert_adam(
            param,
            state["exp_avg"],
            state["exp_avg_sq"],
            grad,
            group["b1"],
            group["b2"],
            scheduled(group, state["step"]),
            group["e"],
            max(group["weight_decay"], 0.0),
            max(group["max_grad_norm"], 0.0),
        )
