"""Deterministic computation: its level, and for a stretch of the model with its backward."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from softnpu import settings
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu import _options

_level = 0


def _cann() -> tuple[int, ...]:
    numbers = settings.current().cann_version.split(".")
    return tuple(int(n) for n in numbers[:3] if n.isdecimal())


def set_deterministic_level(level: int) -> None:
    """0: off; 1: deterministic; 2: also the same for the same data at other places; 3: also for other batch sizes.

    Turns `torch.use_deterministic_algorithms` on or off with it. Level 3 needs CANN 9.2.0.
    """
    global _level
    if isinstance(level, bool) or not isinstance(level, int):
        raise TypeError(f"level must be an int, but received {level!r}" + pta_error(ErrCode.TYPE))
    if not 0 <= level <= 3:
        raise RuntimeError(
            f"level must be 0, 1, 2 or 3, but received {level}" + pta_error(ErrCode.VALUE)
        )
    if level == 3 and _cann() < (9, 2, 0):
        raise RuntimeError(
            "deterministic level 3 needs CANN 9.2.0, but this is "
            f"{settings.current().cann_version}" + pta_error(ErrCode.NOT_SUPPORT)
        )
    wanted = level >= 1
    if torch.are_deterministic_algorithms_enabled() != wanted:
        warnings.warn(
            f"set_deterministic_level({level}) sets torch.use_deterministic_algorithms to {wanted}.",
            stacklevel=2,
        )
        torch.use_deterministic_algorithms(wanted)
    _level = level
    _options.set_all({"STRONG_CONSISTENCY": "enable" if level >= 2 else "disable"})


def _get_deterministic_level() -> int:
    """The level; where `torch.use_deterministic_algorithms` says otherwise, that wins."""
    global _level
    enabled = torch.are_deterministic_algorithms_enabled()
    if _level == 0 and enabled:
        _level = 1
    elif _level >= 1 and not enabled:
        _level = 0
    return _level


class _Switch(torch.autograd.Function):
    """The identity; sets the switch going forward, and the opposite coming back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, on: bool) -> torch.Tensor:
        ctx.on = on
        torch.use_deterministic_algorithms(on)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        torch.use_deterministic_algorithms(not ctx.on)
        return gradient, None


def enable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """Deterministic from here on forward; in backward, no longer once this point is reached."""
    return _Switch.apply(_tensor(tensor), True)


def disable_deterministic_with_backward(tensor: torch.Tensor) -> torch.Tensor:
    """No longer deterministic from here on forward; in backward, deterministic from this point."""
    return _Switch.apply(_tensor(tensor), False)


def _tensor(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"tensor must be a Tensor, but received {type(value).__name__}"
            + pta_error(ErrCode.TYPE)
        )
    return value


# torch.compile leaves them out of its graphs: they act while Python runs.
enable_deterministic_with_backward._dynamo_forbidden = True  # type: ignore[attr-defined]
disable_deterministic_with_backward._dynamo_forbidden = True  # type: ignore[attr-defined]
