"""What the page shows of a profile, read from its result files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OUTPUT = "ASCEND_PROFILER_OUTPUT"
_SHOWN = {"cpu_op", "kernel", "hccl", "mstx", "GC", "overlap", "dequeue"}
_MAX_EVENTS = 60_000  # of a timeline; the longest ones are kept


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
        tracks, left_out = _tracks(out / "trace_view.json")
        return cls(
            name=path.name,
            tracks=tracks,
            kernels=_kernels(out / "kernel_details.csv"),
            operators=_operators(out / "operator_details.csv"),
            steps=list(_rows(out / "step_trace_time.csv")),
            memory=_memory(out / "memory_record.csv"),
            communications=_communications(out / "trace_view.json"),
            left_out=left_out,
        )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        return
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield {key: value.strip("\t") for key, value in row.items()}


def _events(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text("utf-8")) if path.exists() else []


def _tracks(path: Path) -> tuple[list[Track], int]:
    events = _events(path)
    processes: dict[int, str] = {}
    order: dict[int, int] = {}
    threads: dict[tuple[int, int], str] = {}
    for event in events:
        if event["ph"] != "M":
            continue
        args = event["args"]
        if event["name"] == "process_name":
            processes[event["pid"]] = args["name"]
        elif event["name"] == "process_labels" and args["labels"].startswith("NPU"):
            processes[event["pid"]] += f" ({args['labels']})"
        elif event["name"] == "process_sort_index":
            order[event["pid"]] = args["sort_index"]
        elif event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = args["name"]
    spans = [e for e in events if e["ph"] == "X" and e.get("cat") in _SHOWN]
    left_out = max(0, len(spans) - _MAX_EVENTS)
    if left_out:
        spans = sorted(spans, key=lambda e: e["dur"], reverse=True)[:_MAX_EVENTS]
    tracks: dict[tuple[int, int], Track] = {}
    for event in spans:
        key = (event["pid"], event["tid"])
        if key not in tracks:
            process = processes.get(event["pid"], str(event["pid"]))
            tracks[key] = Track(process, threads.get(key, str(event["tid"])))
        tracks[key].spans.append((float(event["ts"]), event["dur"], event["name"]))
    for track in tracks.values():
        track.spans.sort(key=lambda span: (span[0], -span[1]))
    return [tracks[key] for key in sorted(tracks, key=lambda k: (order.get(k[0], 99), k))], left_out


def _kernels(path: Path) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str], list[float]] = {}
    for row in _rows(path):
        name = row["Type"] if row["Type"] != "N/A" else row["Name"].rsplit("_", 1)[-1]
        groups.setdefault((name, row["Accelerator Core"]), []).append(float(row["Duration(us)"]))
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
        entry["host"] += float(row["Host Self Duration(us)"])
        entry["device"] += float(row["Device Self Duration(us)"])
    return sorted(groups.values(), key=lambda o: -(o["host"] + o["device"]))


def _memory(path: Path) -> list[tuple[float, float, float]]:
    return [
        (
            float(row["Timestamp(us)"]),
            float(row["Total Allocated(MB)"]),
            float(row["Total Reserved(MB)"]),
        )
        for row in _rows(path)
        if row["Component"] == "PTA"
    ]


def _communications(path: Path) -> list[dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for event in _events(path):
        if event.get("cat") == "hccl" and "size(Byte)" in event["args"]:
            name = event["args"]["task type"]
            entry = groups.setdefault(name, {"name": name, "count": 0, "total": 0.0, "size": 0})
            entry["count"] += 1
            entry["total"] += event["dur"]
            entry["size"] += event["args"]["size(Byte)"]
    return sorted(groups.values(), key=lambda c: -c["total"])
