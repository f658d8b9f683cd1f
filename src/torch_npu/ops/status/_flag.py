"""The overflow flag of the current device; only saturation mode sets it (torch_npu/npu/_overflow.py)."""

from __future__ import annotations

from softnpu import _C, chips
from torch_npu.npu import _overflow
from torch_npu.ops import _check as must

SIZE = 8


def check_mode(mode: int) -> None:
    must.choice("mode", mode, (0, 1))


def overflowed() -> bool:
    """Whether an operator saturated since the flag was cleared; never in INF/NAN mode."""
    return not _overflow.inf_nan_mode() and _C.overflow_flag(_C.current_device())


def clear() -> None:
    _C.clear_overflow_flag(_C.current_device())


def of_its_own() -> bool:
    """Whether the status is a tensor of its own (Atlas A2 and later), or is written into the one given."""
    return chips.current().family not in ("910A", "310P")
