"""The parts of which a timeline is made: spans, flows, names of processes and tracks, in Chrome's trace format."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator
from typing import Any

from torch_npu.profiler._model import Model
from torch_npu.profiler.writers._csv import us

Event = dict[str, Any]

# The order of processes, which is part of their ids.
GC, MARKS, CANN, HARDWARE, MEMORY, HCCL, OVERLAP = 1, 6, 7, 14, 19, 28, 29
NO_MODEL = 4294967295
QUEUE = 1_000_000_000  # the track of the task queue's thread, which does not exist here


def process_id(model: Model, order: int, device: int = 31) -> int:
    return model.pid << 10 | order << 5 | device


def span(name: str, pid: int, tid: int, start: int, end: int, cat: str, args: Any) -> Event:
    return {
        "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": us(start), "dur": _length(end - start), "cat": cat,
        "args": args,
    }  # fmt: skip


def _length(ns: int) -> float:
    """Microseconds that are `ns` again when a reader multiplies by 1000 and cuts the rest off."""
    value = ns / 1000
    return value if int(value * 1000) == ns else math.nextafter(value, math.inf)


def fit(events: Iterable[Event]) -> list[Event]:
    """Shortens spans so that those of a track nest for readers, too, that keep times as floating point numbers.

    Perfetto is one: microseconds since the epoch then come in steps of a quarter, and a span that seems to reach beyond
    the one around it, or into the next one, would be dropped. No span changes unless its neighbor is as near as that.
    """
    found = list(events)
    tracks: dict[tuple[int, int], list[Event]] = {}
    for event in found:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for spans in tracks.values():
        _fit_track(spans)
    return found


def _seen(moment: str) -> int:
    """Nanoseconds that a reader makes of microseconds in a floating point number."""
    value = float(moment)
    return int(value) * 1000 if value.is_integer() else round(value * 1000)


def _fit_track(spans: list[Event]) -> None:
    exact = [(int(e["ts"].replace(".", "")), round(e["dur"] * 1000)) for e in spans]
    order = sorted(range(len(spans)), key=lambda i: (exact[i][0], -exact[i][1]))
    starts = [exact[i][0] for i in order]
    seen = [_seen(spans[i]["ts"]) for i in order]
    around: list[tuple[int, int, int]] = []  # open spans' ends: as measured, as written, as seen
    for place, i in enumerate(order):
        start, measured = exact[i]
        end, length = start + measured, measured
        while around and around[-1][0] <= start:
            around.pop()
        after = bisect.bisect_left(starts, end, place + 1)
        if after < len(seen):
            length = min(length, seen[after] - seen[place])
        if around:
            length = min(length, around[-1][1] - start, around[-1][2] - seen[place])
        length = max(length, 0)
        if length != measured:
            spans[i]["dur"] = _length(length)
        around.append((end, start + length, seen[place] + length))


def flow(
    name: str, number: int | str, cat: str, begin: tuple[int, int, int], end: tuple[int, int, int]
) -> Iterator[Event]:
    for ph, (pid, tid, when) in (("s", begin), ("f", end)):
        yield {
            "ph": ph,
            "bp": "e",
            "name": name,
            "id": number,
            "pid": pid,
            "tid": tid,
            "ts": us(when),
            "cat": cat,
        }


def name_process(pid: int, name: str, label: str, order: int) -> Iterator[Event]:
    for key, args in (
        ("process_name", {"name": name}),
        ("process_labels", {"labels": label}),
        ("process_sort_index", {"sort_index": order}),
    ):
        yield {"ph": "M", "name": key, "pid": pid, "tid": 0, "args": args}


def name_thread(pid: int, tid: int, name: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
    yield {
        "ph": "M",
        "name": "thread_sort_index",
        "pid": pid,
        "tid": tid,
        "args": {"sort_index": order},
    }


class Tracks:
    """Ranges of one thread may overlap without nesting: one that does gets a further track."""

    def __init__(self) -> None:
        self.open: dict[
            tuple[int, int], list[int]
        ] = {}  # (process, track): ends of the ranges that are open there

    def place(self, pid: int, thread: int, start: int, end: int) -> int:
        track = thread
        while True:
            ends = self.open.setdefault((pid, track), [])
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return track
            track += QUEUE
