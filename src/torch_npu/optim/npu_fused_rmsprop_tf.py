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
        decay, apart = group["weight_decay"], group["decoupled_decay"]
        self._advance(
            group,
            param,
            grad,
            state,
            penalty=0.0 if apart else decay,
            shrink=1 - decay if apart else 1.0,
            inside=True,
            rate_first=group["lr_in_momentum"],
        )
