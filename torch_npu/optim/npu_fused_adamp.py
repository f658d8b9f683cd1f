"""NpuFusedAdamP: AdamP, which slows the growth of scale-invariant weights, over combined tensors."""

from __future__ import annotations

import math
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
        beta1, beta2 = group["betas"]
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.mul_(beta1).add_(grad, alpha=1 - beta1)
        second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        correction1, root2 = corrections(group["betas"], state["step"] + 1)
        ahead = beta1 * first + (1 - beta1) * grad if group["nesterov"] else first
        change = ahead / (second.sqrt() / root2).add_(group["eps"])
        ratios = []
        for each, piece in zip(params, change.split([p.numel() for p in params]), strict=True):
            ratios.append(_project(each, piece.view(each.shape), group))
        if group["weight_decay"] > 0:
            decay = torch.tensor(ratios, dtype=param.dtype, device=param.device)
            decay = self._spread(decay, params) * (group["lr"] * group["weight_decay"])
            param.mul_(1 - decay)
        param.add_(change, alpha=-group["lr"] / correction1)


def _project(param: torch.Tensor, change: torch.Tensor, group: Mapping[str, Any]) -> float:
    """Takes the part along the weights out of the step, in place; returns the ratio of the decay."""
    assert param.grad is not None
    if param.dim() <= 1:
        return 1.0
    eps = group["eps"]
    for rows in (param.shape[0], 1):
        weight, grad = param.reshape(rows, -1), param.grad.reshape(rows, -1)
        norm = weight.norm(dim=1, keepdim=True).add_(eps)
        cosine = (weight * grad).sum(1).abs() / grad.norm(dim=1).add_(eps) / norm.squeeze(1)
        if cosine.max() < group["delta"] / math.sqrt(weight.shape[1]):
            unit, step = weight / norm, change.view(rows, -1)
            step.sub_(unit * (unit * step).sum(1, keepdim=True))
            return group["wd_ratio"]
    return 1.0
