"""torch_npu.utils.set_thread_affinity and reset_thread_affinity: which processors this thread may use."""

from __future__ import annotations

from collections.abc import Sequence

from torch_npu import _C
from torch_npu._errors import ErrCode, pta_error


def _set_thread_affinity(core_range: list[int] | list[list[int]] | None = None) -> None:
    """Binds this thread to processors.

    Args:
        core_range: `[first, last]`, both included, or a list of such ranges; None lets the thread run on
            every processor that the process had at first.

    Differs from upstream: it takes effect whatever CPU_AFFINITY_CONF says.
    """
    if core_range is None:
        return _reset_thread_affinity()
    single = all(isinstance(n, int) for n in core_range)
    ranges: Sequence = [core_range] if single else core_range
    cores: set[int] = set()
    for bounds in ranges:
        if (
            not isinstance(bounds, (list, tuple))
            or len(bounds) != 2
            or not all(isinstance(n, int) for n in bounds)
        ):
            raise ValueError(
                "Invalid core range: it must be two processor numbers, or a list of such pairs, "
                f"but received {core_range!r}" + pta_error(ErrCode.PARAM)
            )
        first, last = bounds
        if not 0 <= first <= last:
            raise ValueError(
                f"Invalid core range: it must be ascending and not negative, but received {core_range!r}"
                + pta_error(ErrCode.VALUE)
            )
        cores.update(range(first, last + 1))
    _C._npu_set_thread_affinity(sorted(cores))


def _reset_thread_affinity() -> None:
    """Lets this thread run on every processor that it had at first."""
    _C._npu_reset_thread_affinity()
