"""What export_stacks writes: a line for each operator's Python stack with its microseconds, as FlameGraph reads it."""

from __future__ import annotations

from pathlib import Path

from torch_npu.profiler._messages import warn
from torch_npu.profiler._model import Model


def export(model: Model, path: Path, metric: str) -> None:
    if path.suffix != ".log":
        warn(f"The file of export_stacks ends in .log: {path.with_suffix('.log').name} is written.")
        path = path.with_suffix(".log")
    lines = []
    for op in model.ops:
        if not op.stack or op.kind == "python":
            continue
        if metric == "self_npu_time_total":
            time = sum(task.duration for task in op.tasks)
        else:
            time = op.duration - op.children_ns
        if time >= 1000:  # a line is at least a microsecond
            frames = ";".join(frame.replace(";", ",") for frame in reversed(op.stack))
            lines.append(f"{frames} {time // 1000}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + ("\n" if lines else ""), "utf-8")
