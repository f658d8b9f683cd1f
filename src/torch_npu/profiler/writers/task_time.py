"""task_time.csv: when each task of a device was scheduled.

Differs from upstream: a task's time is that of its work on the host, on the thread that launched it.
"""

from __future__ import annotations

from pathlib import Path

from torch_npu.profiler._model import Model
from torch_npu.profiler.writers import _csv
from torch_npu.profiler.writers._csv import NA, stamp, us

NAME = "task_time.csv"
HEADERS = [
    "Device_id", "kernel_name", "kernel_type", "stream_id", "task_id", "task_time(us)", "task_start(us)", "task_stop(us)",
]  # fmt: skip
_TYPES = {"AI_CPU": "KERNEL_AICPU", "SDMA_SQE": "MEMCPY_ASYNC", "MIX_AIC": "KERNEL_MIX_AIC"}


def write(model: Model, out: Path) -> None:
    if not model.with_npu:
        return
    _csv.write(
        out / NAME,
        HEADERS,
        (
            [
                task.device, NA if task.copy else task.kernel, _TYPES.get(task.core, "KERNEL_AICORE"), task.stream,
                task.number, us(task.duration), stamp(task.start), stamp(task.end),
            ]
            for task in model.tasks
        ),
    )  # fmt: skip
