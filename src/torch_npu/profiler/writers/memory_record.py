"""memory_record.csv: device memory over time; with profile_memory.

Differs from upstream: there is no graph engine (GE) and no workspace apart: PTA, PTA+GE and APP tell of the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._model import Model
from torch_npu.profiler.writers import _csv
from torch_npu.profiler.writers._csv import megabytes, stamp

NAME = "memory_record.csv"
HEADERS = [
    "Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)", "Total Active(MB)", "Stream Ptr",
    "Device Type",
]  # fmt: skip


def write(model: Model, out: Path) -> None:
    _csv.write(out / NAME, HEADERS, _rows(model))


def _rows(model: Model) -> Iterator[list[Any]]:
    """The framework's allocator (PTA) has all memory; there is no graph engine (GE) to add."""
    reserved: dict[int, int] = {}
    for u in model.memory:
        when, device = stamp(u.time), f"NPU:{u.device}"
        if model.with_npu and reserved.get(u.device) != u.reserved:
            reserved[u.device] = u.reserved
            yield ["APP", when, "", megabytes(u.reserved), "", "", device]
        if u.action.startswith("segment"):
            continue
        sizes = [
            megabytes(u.allocated),
            megabytes(u.reserved),
            megabytes(u.active),
            u.stream,
            device,
        ]
        yield ["PTA", when, *sizes]
        yield ["PTA+GE", when, *sizes]
