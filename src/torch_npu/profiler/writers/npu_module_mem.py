"""npu_module_mem.csv: device memory by component; with profile_memory.

Differs from upstream: one component holds all memory: the application (APP).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._model import Model
from torch_npu.profiler.writers import _csv
from torch_npu.profiler.writers._csv import megabytes, stamp

NAME = "npu_module_mem.csv"
HEADERS = ["Device_id", "Component", "Timestamp(us)", "Total Reserved(MB)", "Device"]


def write(model: Model, out: Path) -> None:
    if model.with_npu:
        _csv.write(out / NAME, HEADERS, _rows(model))


def changes(model: Model) -> Iterator[tuple[int, int, int]]:
    """Device, time and reserved bytes, whenever they change."""
    last: dict[int, int] = {}
    for usage in model.memory:
        if last.get(usage.device) != usage.reserved:
            last[usage.device] = usage.reserved
            yield usage.device, usage.time, usage.reserved


def _rows(model: Model) -> Iterator[list[Any]]:
    for device, time, reserved in changes(model):
        yield [device, "APP", stamp(time), megabytes(reserved), f"NPU:{device}"]
