"""NpuFusedRMSpropTF: RMSprop as TensorFlow computes it, over combined tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from torch_npu.optim._rmsprop import RMSpropBase

__all__ = ["NpuFusedRMSpropTF"]


class NpuFusedRMSpropTF(RMSpropBase):
    """RMSprop in TensorFlow's manner, as timm's RMSpropTF has it.

    The mean square starts at one, epsilon is added under the root, and the learning rate goes into the
    momentum.

    Args:
        params: parameters or groups of parameters.
        lr: the learning rate.
        alpha: the decay of the running averages.
        eps: what is added under the root.
        weight_decay: the weight of the L2 penalty, or what the parameters shrink by.
        momentum: what of the last step is kept.
        centered: whether the variance divides instead of the mean square.
        decoupled_decay: whether the decay acts on the parameters alone.
        lr_in_momentum: whether the momentum keeps steps that `lr` has scaled.
    """

    _first_square = 1.0
    _options: ClassVar[dict[str, Any]] = {"decoupled_decay": False, "lr_in_momentum": True}

    def __init__(
        self,
        params,
        lr=1e-2,
        alpha=0.9,
        eps=1e-10,
        weight_decay=0,
        momentum=0.0,
        centered=False,
        decoupled_decay=False,
        lr_in_momentum=True,
    ):
        super().__init__(
            params,
            lr,
            alpha,
            eps,
            weight_decay,
            momentum,
            centered,
            decoupled_decay=decoupled_decay,
            lr_in_momentum=lr_in_momentum,
        )

    def _update(
        self,
        group: dict[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: dict[str, Any],
        params: Sequence[torch.Tensor],
    ) -> None:
        fresh, lr, decay = 1.0 - group["alpha"], group["lr"], group["weight_decay"]
        if decay != 0 and group["decoupled_decay"]:
            param.mul_(1 - decay)
        elif decay != 0:
            grad = grad.add(param, alpha=decay)
        squares = state["square_avg"]
        squares.add_(grad.square().sub_(squares), alpha=fresh)
        if group["centered"]:
            mean = state["grad_avg"]
            mean.add_(grad - mean, alpha=fresh)
            root = squares.addcmul(mean, mean, value=-1).add_(group["eps"]).sqrt_()
        else:
            root = squares.add(group["eps"]).sqrt_()
        if group["momentum"] > 0:
            buffer = state["momentum_buffer"].mul_(group["momentum"])
            if group["lr_in_momentum"]:
                param.sub_(buffer.addcdiv_(grad, root, value=lr))
            else:
                param.add_(buffer.addcdiv_(grad, root), alpha=-lr)
        else:
            param.addcdiv_(grad, root, value=-lr)
