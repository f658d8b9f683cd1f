"""api_statistic.csv: calls of the layers below the framework; from Level1 on.

Differs from upstream: a launch is the task itself, so its time is the task's; names derive from the operators.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._model import Model
from torch_npu.profiler.writers import _csv
from torch_npu.profiler.writers._csv import us

NAME = "api_statistic.csv"
HEADERS = [
    "Device_id", "Level", "API Name", "Time(us)", "Count", "Avg(us)", "Min(us)", "Max(us)", "Variance",
]  # fmt: skip


def write(model: Model, out: Path) -> None:
    if model.with_npu and model.detailed:
        _csv.write(out / NAME, HEADERS, _rows(model))


def _rows(model: Model) -> Iterator[list[Any]]:
    calls: dict[tuple[str, str], list[int]] = {}
    for task in model.tasks:
        name = "aclrtMemcpyAsync" if task.copy else f"aclnn{task.type}"
        calls.setdefault(("acl", name), []).append(task.duration)
        if not task.copy:
            calls.setdefault(("node", "launch"), []).append(task.duration)
    for one in model.communications:
        calls.setdefault(("communication", f"hcom_{one.name}_"), []).append(
            one.end_ns - one.start_ns
        )
    for (level, name), times in sorted(calls.items()):
        spread = statistics.pvariance([t / 1000 for t in times])
        yield [
            "host", level, name, us(sum(times)), len(times), us(round(sum(times) / len(times))), us(min(times)),
            us(max(times)), round(spread, 3),
        ]  # fmt: skip
