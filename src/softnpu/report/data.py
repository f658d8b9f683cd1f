"""What the page shows of a profile, read from its result files.

A profile may come from anybody: a file that no profiler wrote is an error that names it.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

OUTPUT = "ASCEND_PROFILER_OUTPUT"
_SHOWN = {"cpu_op", "kernel", "hccl", "mstx", "GC", "overlap", "dequeue"}
_MAX_EVENTS = 60_000  # of a timeline; the longest ones are kept
_MAX_BYTES = 2 << 30  # of a file: the timeline is read as a whole
_MAX_NUMBER = 1e18  # bytes and microseconds
#: what a step's row must have: the parts of its bar, and its name
STEP_PARTS = ("Computing", "Communication(Not Overlapped)", "Free")


class Unreadable(ValueError):
    """A result file that no profiler wrote; the message names it."""


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What goes wrong inside is the file's fault."""
    try:
        yield
    except KeyError as wrong:
        raise Unreadable(f"{path} is no result of a profile: it has no {wrong}") from None
    except (
        *(ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError),
        csv.Error,
    ) as wrong:
        raise Unreadable(f"{path} is no result of a profile: {wrong}") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe may wait
    with os.fdopen(descriptor, newline="", encoding="utf-8") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        if status.st_size > _MAX_BYTES:
            raise ValueError(f"it has {status.st_size} bytes, more than {_MAX_BYTES}")
        yield file


def _number(value: Any) -> float:
    """A figure of a file. JSON in Python knows NaN and infinity, which no page can draw; sums of others stay finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{value!r} is no number")
    if not abs(float(value)) < _MAX_NUMBER:
        raise ValueError(f"{value!r} is no number of a profile")
    return value if isinstance(value, (int, float)) else float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def find(directory: Path) -> list[Path]:
    """The profiles of a directory: itself, or those in it."""
    if (directory / OUTPUT).is_dir() or (directory / "FRAMEWORK").is_dir():
        return [directory]
    return sorted(path for path in directory.glob("*_ascend_pt") if path.is_dir())


@dataclass
class Track:
    """A line of the timeline: spans of (start us, duration us, name)."""

    process: str
    name: str
    spans: list[tuple[float, float, str]] = field(default_factory=list)


@dataclass
class Profile:
    name: str
    tracks: list[Track]
    kernels: list[dict[str, Any]]  # name, count, total, mean, core
    operators: list[dict[str, Any]]  # name, count, host, device
    steps: list[dict[str, str]]
    memory: list[tuple[float, float, float]]  # us, allocated MB, reserved MB
    communications: list[dict[str, Any]]  # name, count, total, size
    left_out: int = 0  # spans of the timeline

    @classmethod
    def read(cls, path: Path) -> Profile:
        out = path / OUTPUT
        with _reading(out / "trace_view.json"):
            events = _events(out / "trace_view.json")
            tracks, left_out = _tracks(events)
            communications = _communications(events)
        made: dict[str, Any] = {}
        for name, (file, read) in _TABLES.items():
            with _reading(out / file):
                made[name] = read(out / file)
        return cls(path.name, tracks, communications=communications, left_out=left_out, **made)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        return
    with _opened(path) as file:
        for row in csv.DictReader(file, restval=""):
            if None in row:
                raise ValueError(f"a row has more than {len(row) - 1} columns")
            yield {key: value.strip("\t") for key, value in row.items()}


def _events(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with _opened(path) as file:
        events = json.load(file)
    if not isinstance(events, list):
        raise TypeError("it is no list of events")
    return events


def _tracks(events: list[dict[str, Any]]) -> tuple[list[Track], int]:
    processes: dict[int, str] = {}
    order: dict[int, float] = {}
    threads: dict[tuple[int, int], str] = {}
    for event in events:
        if event["ph"] != "M":
            continue
        args = event["args"]
        if event["name"] == "process_name":
            processes[event["pid"]] = _text(args["name"])
        elif event["name"] == "process_labels" and args["labels"].startswith("NPU"):
            processes[event["pid"]] += f" ({args['labels']})"
        elif event["name"] == "process_sort_index":
            order[event["pid"]] = _number(args["sort_index"])
        elif event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = _text(args["name"])
    spans = [e for e in events if e["ph"] == "X" and e.get("cat") in _SHOWN]
    left_out = max(0, len(spans) - _MAX_EVENTS)
    if left_out:
        spans = sorted(spans, key=lambda e: _number(e["dur"]), reverse=True)[:_MAX_EVENTS]
    tracks: dict[tuple[int, int], Track] = {}
    for event in spans:
        key = (event["pid"], event["tid"])
        if key not in tracks:
            process = processes.get(event["pid"], str(event["pid"]))
            tracks[key] = Track(process, threads.get(key, str(event["tid"])))
        start, length = float(_number(event["ts"])), _number(event["dur"])
        tracks[key].spans.append((start, length, _text(event["name"])))
    for track in tracks.values():
        track.spans.sort(key=lambda span: (span[0], -span[1]))
    return [tracks[key] for key in sorted(tracks, key=lambda k: (order.get(k[0], 99), k))], left_out


def _kernels(path: Path) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[float]] = {}
    for row in _rows(path):
        name = row["Type"] if row["Type"] != "N/A" else row["Name"].rsplit("_", 1)[-1]
        groups.setdefault((name, row["Accelerator Core"]), []).append(_number(row["Duration(us)"]))
    found = [
        {"name": name, "core": core, "count": len(times), "total": sum(times), "mean": sum(times) / len(times)}
        for (name, core), times in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda k: -k["total"])


def _operators(path: Path) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for row in _rows(path):
        entry = groups.setdefault(
            row["Name"], {"name": row["Name"], "count": 0, "host": 0.0, "device": 0.0}
        )
        entry["count"] += 1
        entry["host"] += _number(row["Host Self Duration(us)"])
        entry["device"] += _number(row["Device Self Duration(us)"])
    return sorted(groups.values(), key=lambda o: -(o["host"] + o["device"]))


def _memory(path: Path) -> list[tuple[float, float, float]]:
    return [
        (
            _number(row["Timestamp(us)"]),
            _number(row["Total Allocated(MB)"]),
            _number(row["Total Reserved(MB)"]),
        )
        for row in _rows(path)
        if row["Component"] == "PTA"
    ]


def _steps(path: Path) -> list[dict[str, str]]:
    steps = list(_rows(path))
    for step in steps:
        for part in STEP_PARTS:
            _number(step[part])
        _text(step["Device_id"] + step["Step"])
    return steps


def _communications(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for event in events:
        if event.get("cat") == "hccl" and "size(Byte)" in event["args"]:
            name = _text(event["args"]["task type"])
            entry = groups.setdefault(name, {"name": name, "count": 0, "total": 0.0, "size": 0})
            entry["count"] += 1
            entry["total"] += _number(event["dur"])
            entry["size"] += _number(event["args"]["size(Byte)"])
    return sorted(groups.values(), key=lambda c: -c["total"])


#: by the field of a profile: its file, and what reads it
_TABLES: dict[str, tuple[str, Any]] = {
    "kernels": ("kernel_details.csv", _kernels),
    "operators": ("operator_details.csv", _operators),
    "steps": ("step_trace_time.csv", _steps),
    "memory": ("memory_record.csv", _memory),
}
