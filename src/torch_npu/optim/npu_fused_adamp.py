"""NpuFusedAdamP: AdamP, which slows the growth of scale-invariant weights, over combined tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_npu.optim.npu_fused_optim_base import NpuFusedOptimizerBase, corrections

__all__ = ["NpuFusedAdamP"]


class NpuFusedAdamP(NpuFusedOptimizerBase):
    """Adam whose step loses its part along the weights where these look scale-invariant.

    A weight of two or more dimensions is taken for scale-invariant, by channel or as a whole, when its
    gradient is almost orthogonal to it.

    Args:
        params: parameters or groups of parameters.
        lr: the learning rate.
        betas: the decay of the running averages of the gradient and of its square.
        eps: what is added to denominators.
        weight_decay: what the parameters shrink by, times `lr`.
        delta: the cosine below which, over the root of the size, gradient and weight count as orthogonal.
        wd_ratio: what multiplies the decay of scale-invariant weights.
        nesterov: whether the step looks ahead.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0,
        delta=0.1,
        wd_ratio=0.1,
        nesterov=False,
    ):
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "delta": delta,
            "wd_ratio": wd_ratio,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def step(self, closure=None):
        """One update; returns what the closure returns."""
        return super().step(closure)

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
        correction1, root2 = corrections(group["betas"], state["step"] + 1)
        torch.ops.softnpu.fused_adamp(
            param,
            state["exp_avg"],
            state["exp_avg_sq"],
            grad,
            [p.numel() for p in params],
            [p.shape[0] if p.dim() > 1 else 0 for p in params],
            *group["betas"],
            group["lr"] / correction1,
            root2,
            group["eps"],
            group["lr"] * max(group["weight_decay"], 0.0),
            group["delta"],
            group["wd_ratio"],
            group["nesterov"],
        )
