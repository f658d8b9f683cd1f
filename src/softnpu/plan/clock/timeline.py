"""When each task runs: the host launches in order, streams run in order, waits join them.

The host spends some time on each launch and runs ahead of the device; a task begins when it was launched, when its stream
is free, and when what it waits for has ended. Where the host waits for a task, its next launch comes after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from softnpu.plan.clock.figures import ClockError
from softnpu.plan.tasks import Task

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Start of each task, and the end of everything, host included."""

    starts: list[float]
    end: float


def schedule(
    tasks: Sequence[Task], seconds: Sequence[float], launch: float, sync: float
) -> Schedule:
    """`seconds` of each task; `launch` of the host for each; `sync` from a task's end to the host's next launch."""
    starts: list[float] = []
    ends: list[float] = []
    free: dict[tuple[int, int], float] = {}
    host = 0.0
    for index, (task, length) in enumerate(zip(tasks, seconds)):
        host += launch
        place = (task.device, task.stream)
        start = max(host, free.get(place, 0.0))
        for other in task.waits:
            if not 0 <= other < index:
                raise ClockError(
                    f"task {index} ({task.name}) waits for task {other}, not before it"
                )
            start = max(start, ends[other])
        end = start + length
        starts.append(start)
        ends.append(end)
        free[place] = end
        if task.host_waits:
            host = max(host, end + sync)
    return Schedule(starts, max([host, *ends]))


def merge(spans: Iterable[Span]) -> list[Span]:
    """The same times, without overlaps."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def uncovered(spans: Iterable[Span], cover: Iterable[Span]) -> float:
    """Seconds of `spans` in which nothing of `cover` runs."""
    whole, hidden = merge(spans), merge(cover)
    seconds = sum(end - start for start, end in whole)
    index = 0
    for start, end in whole:
        while index < len(hidden) and hidden[index][1] <= start:
            index += 1
        at = index
        while at < len(hidden) and hidden[at][0] < end:
            seconds -= min(end, hidden[at][1]) - max(start, hidden[at][0])
            at += 1
    return seconds
