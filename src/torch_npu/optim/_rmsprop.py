"""What the two fused RMSprops share: hyperparameters, states and, but for details, the update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from torch_npu.optim.npu_fused_optim_base import NpuFusedOptimizerBase, require


class RMSpropBase(NpuFusedOptimizerBase):
    """A subclass says where the mean square starts, and what its options of its own default to."""

    _first_square: ClassVar[float] = 0.0
    _options: ClassVar[dict[str, Any]] = {}

    def __init__(self, params, lr, alpha, eps, weight_decay, momentum, centered, **options):
        require(lr >= 0.0, "learning rate", lr)
        require(eps >= 0.0, "epsilon value", eps)
        require(momentum >= 0.0, "momentum value", momentum)
        require(weight_decay >= 0.0, "weight_decay value", weight_decay)
        require(alpha >= 0.0, "alpha value", alpha)
        defaults = {
            "lr": lr,
            "alpha": alpha,
            "eps": eps,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "centered": centered,
            **options,
        }
        super().__init__(params, defaults)

    def __setstate__(self, state):
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in {"momentum": 0, "centered": False, **self._options}.items():
                group.setdefault(name, value)

    def _state_names(self, group: Mapping[str, Any]) -> dict[str, float]:
        names = {"square_avg": self._first_square}
        if group["momentum"] > 0:
            names["momentum_buffer"] = 0.0
        if group["centered"]:
            names["grad_avg"] = 0.0
        return names

    @staticmethod
    def _advance(
        group: Mapping[str, Any],
        param: torch.Tensor,
        grad: torch.Tensor,
        state: Mapping[str, Any],
        penalty: float,
        shrink: float = 1.0,
        inside: bool = False,
        rate_first: bool = False,
    ) -> None:
        """States and parameters; `penalty` of these is in the gradient, `shrink` multiplies them.

        `inside`: epsilon is added under the root; `rate_first`: the momentum keeps scaled steps.
        """
        torch.ops.softnpu.fused_rmsprop(
            param,
            state["square_avg"],
            state.get("momentum_buffer"),
            state.get("grad_avg"),
            grad,
            group["lr"],
            group["alpha"],
            group["eps"],
            group["momentum"],
            penalty,
            shrink,
            inside,
            rate_first,
        )
