"""torch.npu.amp.GradScaler."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import Any

import torch

from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu import _overflow
from torch_npu.npu._device import is_available


def _any_rank(overflowed: bool) -> bool:
    """Whether some rank saw an overflow."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return overflowed
    count = torch.tensor([float(overflowed)], device="npu")
    torch.distributed.all_reduce(count)
    return count.item() != 0


class GradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler on the npu, which knows the saturation mode and a static scale.

    In saturation mode gradients never become infinite, so the device's overflow flag decides whether a step is
    skipped: it is cleared by the first `scale` of an iteration and read when gradients are unscaled; ranks tell each
    other. Where the gradients of one optimizer overflow, the steps of the others after it are skipped too, until
    `update`. `dynamic=False` keeps the scale and skips no step.
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
        for label, value in (("growth_factor", growth_factor), ("backoff_factor", backoff_factor)):
            if enabled and not isinstance(value, (Real, torch.Tensor)):
                raise TypeError(
                    f"GradScaler: argument '{label}' must be a number, but received {value!r}"
                    + pta_error(ErrCode.TYPE)
                )
        if enabled and growth_factor <= 1.0:
            raise ValueError("The growth factor must be > 1.0." + pta_error(ErrCode.VALUE))
        if enabled and backoff_factor >= 1.0:
            raise ValueError("The backoff factor must be < 1.0." + pta_error(ErrCode.VALUE))
        super().__init__("npu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self._dynamic = dynamic
        self._flag_cleared = False
        self._has_overflow = False

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
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        if not self._dynamic:
            for flag in found.values():
                flag.zero_()
            return found
        self._has_overflow |= any(flag.item() > 0 for flag in found.values())
        if not _overflow.is_support_inf_nan():
            self._has_overflow = _any_rank(self._has_overflow or _overflow.get_npu_overflow_flag())
        if self._has_overflow:
            for flag in found.values():
                flag.fill_(1.0)
        return found

    def _maybe_opt_step(
        self, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self._has_overflow:
            return None
        return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)

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
        self._flag_cleared = self._has_overflow = False

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
