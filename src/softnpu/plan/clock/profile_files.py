"""A prediction as a profile: the usual files, with predicted times, marked as predicted in their names and metadata."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from datetime import datetime
from pathlib import Path
from typing import Any

from softnpu.collectives import HCCL_NAMES
from softnpu.plan.clock.kernels import message
from softnpu.plan.clock.prediction import Prediction
from softnpu.plan.tasks import Task, TensorSpec

MARK = "predicted by softnpu plan, not measured"
_LEVEL = "Level1"  # with types and shapes of kernels
_COPY = "memcpy"  # the name of a copy between host and device
_NO_THREAD = 0  # a predicted task belongs to no host operator


def write(
    directory: Path,
    tasks: Sequence[Task],
    prediction: Prediction,
    chip: str,
    rank: int = 0,
    memory: Iterable[Sequence[Any]] = (),
) -> Path:
    """Writes `predicted_..._ascend_pt` below `directory`; `softnpu report`, Perfetto and msprof-analyze open it.

    memory: rows of the profiler's raw data (action, address, bytes, stream, device, ns), times from 0 on.
    """
    from torch_npu.profiler import _analyse, _raw

    start = time.time_ns()
    path = _directory(directory, rank)
    writer = _raw.Writer(path, with_device=True)
    writer.append("task", list(_tasks(tasks, prediction, start)))
    writer.append("kernel", _kernels(tasks))
    writer.append("communication", list(_communications(tasks, prediction, start, rank)))
    end = start + _ns(prediction.seconds)
    writer.append("step", [[0, start, end]])
    writer.append("mark", [[MARK, "softnpu", start, end, None, os.getpid()]])
    writer.append("memory", [[*row[:5], start + row[5]] for row in memory])
    writer.close()
    _write_info(path, rank, chip, start, prediction)
    with contextlib.redirect_stdout(sys.stderr):  # it says what it does
        _analyse.run(str(path), ["text"])
    return path


def _directory(directory: Path, rank: int) -> Path:
    stamp = datetime.now().astimezone().strftime("%Y%m%d%H%M%S%f")[:-3]
    path = directory / f"predicted-rank{rank}_{os.getpid()}_{stamp}_ascend_pt"
    path.mkdir(parents=True, mode=0o750)
    return path


def _write_info(path: Path, rank: int, chip: str, start: int, prediction: Prediction) -> None:
    from torch_npu.profiler import _raw

    info = {
        "config": {
            "common_config": {"activities": ["ProfilerActivity.NPU"], "record_shapes": True},
            "experimental_config": {"_profiler_level": _LEVEL, "_export_type": ["text"]},
        },
        "start_info": {"pid": os.getpid(), "start_timestamp": start},
        "rank_id": rank,
        "predicted": True,
    }
    _raw.write_json(path / f"profiler_info_{rank}.json", info)
    _raw.write_json(
        path / _raw.METADATA,
        {
            "predicted": True,
            "note": MARK,
            "chip": chip,
            "step_seconds": prediction.seconds,
            "mfu": prediction.mfu,
        },
    )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _tasks(tasks: Sequence[Task], prediction: Prediction, start: int) -> Iterable[list[Any]]:
    for number, (task, when) in enumerate(zip(tasks, prediction.tasks)):
        if task.kind != "collective":
            begin = start + _ns(when.start)
            name = _COPY if task.kind == "copy" else task.name
            yield [
                name, task.device, task.stream, _NO_THREAD, begin, begin + _ns(when.seconds),
                _tensors(task.inputs), _tensors(task.outputs), number,
            ]  # fmt: skip


def _tensors(specs: Sequence[TensorSpec]) -> list[list[Any]]:
    return [[list(spec.shape), spec.dtype, 2] for spec in specs]  # 2: the format ND


def _kernels(tasks: Sequence[Task]) -> list[list[str]]:
    from torch_npu.profiler import _facts
    from torch_npu.profiler._kernels import COPY_CORE

    names = sorted({task.name for task in tasks if task.kind == "kernel"})
    return [[name, *_facts.kernel(name)] for name in names] + [[_COPY, _COPY, COPY_CORE]]


def _communications(
    tasks: Sequence[Task], prediction: Prediction, start: int, rank: int
) -> Iterable[list[Any]]:
    from softnpu.plan.clock.collectives import kind_of
    from torch_npu.profiler._communication import Communication

    for task, when in zip(tasks, prediction.tasks):
        if task.kind != "collective":
            continue
        peers = task.peers or tuple(range(task.ranks))
        size = sum(spec.nbytes for spec in task.inputs) or message(task)
        begin = start + _ns(when.start)
        dtype = task.inputs[0].dtype if task.inputs else "uint8"
        one = Communication(
            name=HCCL_NAMES[kind_of(task.name)],
            group="predicted_" + "_".join(map(str, (peers[0], peers[-1], len(peers)))),
            ranks=peers,
            rank=rank,
            peer=-1,
            count=sum(spec.numel for spec in task.inputs),
            dtype=dtype,
            size=size,
            device=task.device,
            stream=task.stream,
            thread=_NO_THREAD,
            start_ns=begin,
            end_ns=begin + _ns(when.seconds),
        )
        yield list(astuple(one))
