"""Binding this thread to processors."""

from __future__ import annotations

from collections.abc import Sequence

from torch_npu import _C
from torch_npu._errors import ErrCode, pta_error


def set_thread_affinity(core_range: Sequence[int]) -> None:
    """Binds this thread to the processors from the first to the last of two numbers, both included."""
    if len(core_range) != 2 or not all(isinstance(n, int) for n in core_range):
        raise ValueError(
            f"core_range must be two processor numbers, but received {core_range!r}"
            + pta_error(ErrCode.PARAM)
        )
    first, last = core_range
    if not 0 <= first <= last:
        raise ValueError(
            f"core_range must be ascending and not negative, but received {core_range!r}"
            + pta_error(ErrCode.VALUE)
        )
    _C._npu_set_thread_affinity(first, last)


def reset_thread_affinity() -> None:
    """Lets this thread run on every processor that it had at first."""
    _C._npu_reset_thread_affinity()
