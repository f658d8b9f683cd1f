"""Profiles for tests: one written by hand, whose numbers are known, and real ones."""

from __future__ import annotations

import csv
import json
import sqlite3
from pathlib import Path
from typing import Any

import torch

import torch_npu.profiler as prof
from torch_npu.profiler import _analyse, _raw
from torch_npu.profiler.experimental_config import _ExperimentalConfig

START = 1_700_000_000_000_000_000  # ns
MAIN, BACKWARD = 4001, 4002  # threads
FLOAT = [[[4, 8], "torch.float32", 2]]


def us(microseconds: float) -> int:
    return START + round(microseconds * 1000)


def op(name: str, start: float, end: float, thread: int = MAIN, **more: Any) -> list[Any]:
    return [
        name, us(start), us(end), thread, more.get("sequence", -1), more.get("forward", 0), more.get("scope", 0),
        more.get("kind", "op"), more.get("shapes"), more.get("dtypes"), more.get("stack"), more.get("flops", 0),
    ]  # fmt: skip


def task(name: str, start: float, end: float, number: int, **more: Any) -> list[Any]:
    return [
        name, more.get("device", 0), more.get("stream", 2), more.get("thread", MAIN), us(start), us(end),
        more.get("inputs", FLOAT), more.get("outputs", FLOAT), number,
    ]  # fmt: skip


def communication(name: str, start: float, end: float, **more: Any) -> list[Any]:
    return [
        name, more.get("group", "group_0"), more.get("ranks", [0, 1, 2, 3]), more.get("rank", 0), more.get("peer", -1),
        1024, "fp32", 4096, 0, 5, MAIN, us(start), us(end),
    ]  # fmt: skip


def rows() -> dict[str, list[list[Any]]]:
    """Two steps: a product and an addition forward, an addition backward, an all-reduce that overlaps it by half."""
    ops, tasks, communications = [], [], []
    for index, base in enumerate((0, 1000)):
        ops += [
            op(f"ProfilerStep#{index + 3}", base, base + 900, kind="user"),
            op("aten::linear", base + 100, base + 300, sequence=index, shapes=[[4, 8], [8, 8]], dtypes=["float", "float"]),
            op("aten::addmm", base + 120, base + 290, stack=["model.py(7): forward", "train.py(3): <module>"]),
            op("aten::empty", base + 130, base + 135),
            op("aten::copy_inside_the_task", base + 150, base + 160),
            op("AddBackward0", base + 400, base + 600, BACKWARD, sequence=index, forward=1, scope=1),
            op("aten::add", base + 410, base + 590, BACKWARD),
        ]  # fmt: skip
        tasks += [
            task("aten::addmm", base + 140, base + 280, 10 * index + 1),
            task("aten::add", base + 420, base + 520, 10 * index + 2, thread=BACKWARD),
        ]
        communications.append(communication("allReduce", base + 470, base + 570))
    return {
        "op": ops,
        "task": tasks,
        "kernel": [["aten::addmm", "MatMulV2", "AI_CORE"], ["aten::add", "Add", "AI_VECTOR_CORE"]],
        "communication": communications,
        "baseline": [[0, 2**20, 2**21, 2**20, us(0)]],
        "memory": [
            ["alloc", 64, 2048, 2, 0, us(132)],
            ["alloc", 128, 4096, 2, 0, us(415)],
            ["free_requested", 64, 2048, 2, 0, us(500)],
            ["free_completed", 64, 2048, 2, 0, us(501)],
        ],
        "mark": [["load", "default", us(10), us(60), None, MAIN], ["tick", "other", us(70), us(70), [0, 2], MAIN]],
        "gc": [[1, us(700), us(720), MAIN]],
    }  # fmt: skip


def make_profile(
    path: Path, data: dict[str, list[Any]] | None = None, rank: int | None = None, **config: Any
) -> Path:
    """Writes raw data as a collection does; `config` goes to _ExperimentalConfig."""
    profile = path / "worker_1_20240101000000000_ascend_pt"
    profile.mkdir(parents=True)
    writer = _raw.Writer(profile, with_device=True)
    for kind, lines in (rows() if data is None else data).items():
        writer.append(kind, lines)
    writer.close()
    info: dict[str, Any] = {
        "config": {
            "common_config": {"activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"]},
            "experimental_config": vars(_ExperimentalConfig(**config)),
        },
        "start_info": {"start_time": us(0), "pid": 77},
        "end_info": {"collectionTimeEnd": us(2000)},
    }
    name = "profiler_info.json"
    if rank is not None:
        info["rank_id"], name = rank, f"profiler_info_{rank}.json"
    _raw.write_json(profile / name, info)
    return profile


def analyzed(path: Path, data: dict[str, list[Any]] | None = None, **config: Any) -> Path:
    """The result directory of a profile that was written by hand."""
    make_profile(path, data, **config)
    _analyse.many(str(path), 1, None)
    return outputs(path)


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return [{k: v.strip("\t") for k, v in row.items()} for row in csv.DictReader(file)]


def header(path: Path) -> list[str]:
    with open(path, newline="", encoding="utf-8") as file:
        return next(csv.reader(file))


def read_trace(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text("utf-8"))


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def outputs(directory: Path) -> Path:
    """The result directory of the only profile in a directory."""
    (profile,) = directory.glob("*_ascend_pt")
    return profile / _raw.OUTPUT


def train_step() -> None:
    """A little work, forward and backward."""
    x = torch.ones(8, 8, device="npu", requires_grad=True)
    (x @ x).relu().sum().backward()


def handler(path: Path, **options: Any) -> Any:
    return prof.tensorboard_trace_handler(str(path), **options)


def run(path: Path, steps: int = 1, config: dict[str, Any] | None = None, **options: Any) -> None:
    """Profiles a few steps of work."""
    with prof.profile(
        on_trace_ready=handler(path), experimental_config=_ExperimentalConfig(**(config or {})), **options
    ) as profiler:  # fmt: skip
        for _ in range(steps):
            train_step()
            profiler.step()


def names(directory: Path) -> set[str]:
    """The result files of the only profile in a directory."""
    return {file.name for file in outputs(directory).iterdir()}
