"""data_preprocess.csv: operators that the card runs on its AI CPU; Level2, if there are any.

Differs from upstream: which operators those are follows from their data types (float64, complex); Memcpy_time and
Dispatch_time are N/A.
"""

from __future__ import annotations

from pathlib import Path

from torch_npu.profiler._model import Model
from torch_npu.profiler.writers import _csv
from torch_npu.profiler.writers._csv import NA, stamp, us

NAME = "data_preprocess.csv"
HEADERS = [
    "Device_id", "Timestamp(us)", "Node", "Compute_time(us)", "Memcpy_time(us)", "Task_time(us)", "Dispatch_time(us)",
    "Total_time(us)", "Stream ID", "Task ID",
]  # fmt: skip


def write(model: Model, out: Path) -> None:
    if not model.with_npu or model.level != "Level2":
        return
    _csv.write(
        out / NAME,
        HEADERS,
        (
            [
                task.device, stamp(task.start), task.type, us(task.duration), NA, us(task.duration), NA, us(task.duration),
                task.stream, task.number,
            ]
            for task in model.kernels
            if task.core == "AI_CPU"
        ),
    )  # fmt: skip
