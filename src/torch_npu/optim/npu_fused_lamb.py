"""NpuFusedLamb: LAMB, layer-wise adaptive steps for large batches, over combined tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_npu.optim.npu_fused_optim_base import NpuFusedOptimizerBase, require, require_betas

__all__ = ["NpuFusedLamb"]

#: the norm of a parameter counts up to this one
MAX = 10.0


class NpuFusedLamb(NpuFusedOptimizerBase):
    """LAMB: Adam's step of each parameter, scaled by the ratio of the parameter's norm to its own.

    Args:
        params: parameters or groups of parameters.
        lr: the learning rate.
        betas: the decay of the running averages of the gradient and of its square.
        eps: what is added to the denominator.
        weight_decay: what of the parameters is added to the step.
        adam: whether the ratio is one: Adam without bias correction.
        use_global_grad_norm: whether gradients are divided by their joint norm where it exceeds one.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0,
        adam=False,
        use_global_grad_norm=False,
    ):
        require(lr >= 0.0, "learning rate", lr)
        require_betas(betas)
        require(eps >= 0.0, "epsilon value", eps)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        self.adam = adam
        self.use_global_grad_norm = use_global_grad_norm
        self.global_grad_norm: torch.Tensor | None = None
        super().__init__(params, defaults)

    def step(self, closure=None):
        """One update; returns what the closure returns."""
        return super().step(closure)

    def _state_names(self, group: Mapping[str, Any]) -> dict[str, float]:
        return {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def _before_groups(self) -> None:
        grads = [g for g in self.grads_all_group_combined if g is not None]
        if self.use_global_grad_norm and grads:
            norms = torch.stack([torch.linalg.vector_norm(g.float()) for g in grads])
            self.global_grad_norm = torch.linalg.vector_norm(norms)

    def _update(
        self,
        group: dict[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        params: Sequence[torch.Tensor],
    ) -> None:
        torch.ops.softnpu.fused_lamb(
            param,
            state["exp_avg"],
            state["exp_avg_sq"],
            grad,
            self.global_grad_norm if self.use_global_grad_norm else None,
            [p.numel() for p in params],
            *group["betas"],
            group["lr"],
            group["eps"],
            group["weight_decay"],
            0.0 if self.adam else MAX,
        )
