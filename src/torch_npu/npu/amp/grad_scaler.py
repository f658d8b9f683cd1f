"""torch.npu.amp.GradScaler."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu import _overflow
from torch_npu.npu._device import is_available


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler on the npu, which knows the saturation mode and a static scale.

    In saturation mode gradients never become infinite, so the device's overflow flag decides whether a step is
    skipped: it is cleared by the first `scale` of an iteration and read when gradients are unscaled.
    `dynamic=False` keeps the scale and skips no step.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        if enabled and not is_available():
            warnings.warn(
                "torch_npu.amp.GradScaler is enabled, but NPU is not available. Disabling.",
                stacklevel=2,
            )
            enabled = False
        if enabled and growth_factor <= 1.0:
            raise ValueError("The growth factor must be > 1.0." + pta_error(ErrCode.VALUE))
        if enabled and backoff_factor >= 1.0:
            raise ValueError("The backoff factor must be < 1.0." + pta_error(ErrCode.VALUE))
        super().__init__("npu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._dynamic = dynamic
        self._flag_cleared = False

    def scale(self, outputs: Any) -> Any:
        """Multiplies outputs (a tensor, or tensors in lists and tuples) by the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor) and outputs.device.type != "npu":
            raise ValueError(
                f"Device type of outputs should be npu, but is {outputs.device.type}."
                + pta_error(ErrCode.VALUE)
            )
        if self._dynamic and not self._flag_cleared:
            if not _overflow.is_support_inf_nan():
                _overflow.clear_npu_overflow_flag()
            self._flag_cleared = True
        return super().scale(outputs)

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        saturated = (
            self._dynamic
            and not _overflow.is_support_inf_nan()
            and _overflow.get_npu_overflow_flag()
        )
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        for flag in found.values():
            if saturated:
                flag.fill_(1.0)
            elif not self._dynamic:
                flag.zero_()
        return found

    def update(self, new_scale: Any = None) -> None:
        """Grows or shrinks the scale after an iteration, or sets it."""
        if not self._enabled:
            return
        before = self._scale
        if new_scale is None and not self._dynamic:
            self._check_scale_growth_tracker("update")
            assert before is not None
            new_scale = float(before.item())
        super().update(new_scale)
        self._flag_cleared = False

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self._enabled:
            state["dynamic"] = self._dynamic
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self._enabled:
            self._dynamic = state_dict.get("dynamic", True)

    @staticmethod
    def get_npu_overflow_flag() -> bool:
        return _overflow.get_npu_overflow_flag()

    @staticmethod
    def clear_npu_overflow_flag() -> None:
        _overflow.clear_npu_overflow_flag()
