"""op_statistic.csv: how often each type of kernel ran, and how long; from Level1 on.

Differs from upstream: types and cores of kernels derive from the operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._model import Model
from torch_npu.profiler.writers import _csv
from torch_npu.profiler.writers._csv import us

NAME = "op_statistic.csv"
HEADERS = [
    "Device_id", "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)", "Avg Time(us)", "Max Time(us)",
    "Ratio(%)",
]  # fmt: skip


def write(model: Model, out: Path) -> None:
    if model.with_npu and model.detailed:
        _csv.write(out / NAME, HEADERS, _rows(model))


def _rows(model: Model) -> Iterator[list[Any]]:
    groups: dict[tuple[int, str, str], list[int]] = {}
    whole: dict[int, int] = {}
    for task in model.kernels:
        groups.setdefault((task.device, task.type, task.core), []).append(task.duration)
        whole[task.device] = whole.get(task.device, 0) + task.duration
    for (device, kind, core), times in sorted(groups.items(), key=lambda g: (g[0][0], -sum(g[1]))):
        all_ = sum(times)
        ratio = round(100 * all_ / whole[device], 3) if whole[device] else 0.0
        yield [
            device, kind, core, len(times), us(all_), us(min(times)), us(round(all_ / len(times))), us(max(times)), ratio,
        ]  # fmt: skip
