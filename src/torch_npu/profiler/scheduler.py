"""torch_npu.profiler.schedule and ProfilerAction: which steps are profiled."""

from __future__ import annotations

import enum

from torch_npu._errors import ErrCode, prof_error
from torch_npu.profiler._messages import warn

__all__ = ["ProfilerAction", "Schedule"]


class ProfilerAction(enum.Enum):
    """What the profiler does in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


class Schedule:
    """From a step's number to its action.

    After `skip_first` steps, cycles of `wait` idle steps, `warmup` steps and `active` recorded steps follow, `repeat`
    of them (0: without end). The data of a cycle is saved in its last active step.

    Args:
        wait: idle steps at the start of a cycle.
        active: recorded steps of a cycle, at least 1.
        warmup: steps in which the profiler runs but keeps nothing.
        repeat: how many cycles; 0 for no limit.
        skip_first: steps before the first cycle.
        skip_first_wait: not 0: the first cycle has no idle steps.

    A value out of range is replaced by the default, with a warning.
    """

    def __init__(
        self,
        wait: int,
        active: int,
        warmup: int = 0,
        repeat: int = 0,
        skip_first: int = 0,
        skip_first_wait: int = 0,
    ) -> None:
        self.wait = _at_least("wait", wait, 0, 0)
        self.active = _at_least("active", active, 1, 1)
        self.warmup = _at_least("warmup", warmup, 0, 0)
        self.repeat = _at_least("repeat", repeat, 0, 0)
        self.skip_first = _at_least("skip_first", skip_first, 0, 0)
        self.skip_first_wait = _at_least("skip_first_wait", skip_first_wait, None, 0)
        if self.warmup == 0:
            warn("The schedule has no warmup step: the first recorded step may look slow.")

    def __call__(self, step: int) -> ProfilerAction:
        if step < 0:
            raise ValueError(
                f"step must not be negative, but received {step}" + prof_error(ErrCode.VALUE)
            )
        step -= self.skip_first
        if step < 0:
            return ProfilerAction.NONE
        if self.skip_first_wait:
            step += self.wait
        length = self.wait + self.warmup + self.active
        cycle, place = divmod(step, length)
        if (self.repeat and cycle >= self.repeat) or place < self.wait:
            return ProfilerAction.NONE
        if place < self.wait + self.warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if place == length - 1 else ProfilerAction.RECORD


def _at_least(name: str, value: object, least: int | None, default: int) -> int:
    if isinstance(value, int) and (least is None or value >= least):
        return value
    bound = "" if least is None else f" of at least {least}"
    warn(
        f"Invalid parameter {name}: expected an int{bound}, received {value!r}; {default} is used."
    )
    return default


def always(_: int) -> ProfilerAction:
    """The schedule of a profiler that has none: everything is recorded."""
    return ProfilerAction.RECORD
