"""operator_details.csv: host and device time of every operator of the framework.

Differs from upstream: operators that the emulation itself runs inside a device task are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._model import STEP, Model
from torch_npu.profiler.writers import _csv
from torch_npu.profiler.writers._csv import us

NAME = "operator_details.csv"
HEADERS = [
    "Name", "Input Shapes", "Call Stack", "Host Self Duration(us)", "Host Total Duration(us)",
    "Device Self Duration(us)", "Device Total Duration(us)", "Device Self Duration With AICore(us)",
    "Device Total Duration With AICore(us)",
]  # fmt: skip


def write(model: Model, out: Path) -> None:
    if model.with_cpu:
        _csv.write(out / NAME, HEADERS, _rows(model))


def dims(shapes: list[Any] | None) -> str:
    """Shapes of an operator's inputs, as upstream writes them."""
    return ";\r\n".join(",".join(map(str, shape)) for shape in shapes or ())


def _rows(model: Model) -> Iterator[list[Any]]:
    for op in model.ops:
        if op.kind == "python" or op.name.startswith(STEP):
            continue
        own = sum(task.duration for task in op.tasks)
        core = sum(t.duration for t in op.tasks if not t.copy and t.core != "AI_CPU")
        yield [
            op.name, dims(op.shapes), op.call_stack, us(max(0, op.duration - op.children_ns)), us(op.duration), us(own),
            us(op.device_total), us(core), us(op.device_total_core),
        ]  # fmt: skip
