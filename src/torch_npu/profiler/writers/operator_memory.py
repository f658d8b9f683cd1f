"""operator_memory.csv: which operator allocated device memory, and how long it was held; with profile_memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_npu.profiler._model import Model, Usage
from torch_npu.profiler.writers import _csv
from torch_npu.profiler.writers._csv import megabytes, stamp, us

NAME = "operator_memory.csv"
HEADERS = [
    "Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)", "Duration(us)",
    "Active Duration(us)", "Allocation Total Allocated(MB)", "Allocation Total Reserved(MB)",
    "Allocation Total Active(MB)", "Release Total Allocated(MB)", "Release Total Reserved(MB)",
    "Release Total Active(MB)", "Stream Ptr", "Device Type",
]  # fmt: skip


@dataclass
class Holding:
    """A block from its allocation to its release; None where the profile ended first."""

    name: str
    made: Usage
    released: Usage | None = None
    returned: Usage | None = None


def holdings(model: Model) -> list[Holding]:
    """All allocations of the profile, in order."""
    found: list[Holding] = []
    held: dict[tuple[int, int], Holding] = {}
    for usage in model.memory:
        place = (usage.device, usage.address)
        if usage.action == "alloc":
            # The history's clock has microseconds: the operator may have begun in the same one.
            op = model.op_at(usage.time + 999)
            held[place] = holding = Holding("" if op is None else op.name, usage)
            found.append(holding)
        elif place in held and usage.action == "free_requested":
            held[place].released = usage
        elif place in held and usage.action == "free_completed":
            held.pop(place).returned = usage
    return found


def write(model: Model, out: Path) -> None:
    if model.with_cpu and model.memory:
        _csv.write(out / NAME, HEADERS, _rows(model))


def _rows(model: Model) -> Iterator[list[Any]]:
    for one in holdings(model):
        made, released, returned = one.made, one.released, one.returned
        last = released or returned
        yield [
            one.name,
            made.size / 1024,
            stamp(made.time),
            "" if released is None else stamp(released.time),
            "" if returned is None else stamp(returned.time),
            "" if released is None else us(released.time - made.time),
            "" if returned is None else us(returned.time - made.time),
            *_totals(made),
            *(["", "", ""] if last is None else _totals(last)),
            made.stream,
            f"NPU:{made.device}",
        ]


def _totals(usage: Usage) -> list[float]:
    return [megabytes(usage.allocated), megabytes(usage.reserved), megabytes(usage.active)]
