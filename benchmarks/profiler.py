"""What profiling costs: a small Transformer's step with a profiler, after one, and the export of events.

What remains after a profile is measured against a program that has never imported the profiler: each of the two is a
process of its own, they take turns, and the processor's time counts.
"""

from __future__ import annotations

import contextlib
import functools
import io
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import torch_npu  # noqa: F401
from benchmarks.harness import Case, Goal

ON = Goal(2.0)
OFF = Goal(1.03)
_EVENTS = 100_000
_SECONDS = 20.0  # that their export may take
_STEPS = 5


def cases() -> Iterator[Case]:
    step = _transformer()
    many = functools.partial(_steps, step)
    yield Case(
        "profiler", f"{_STEPS} transformer steps, Level0, CPU and NPU", _Profiled(many), many, ON, against="no profiler"
    )  # fmt: skip
    yield Case(
        "profiler",
        f"{_STEPS} transformer steps, after a profile",
        _Process("after"),
        _Process("never"),
        OFF,
        against="no profiler import",
        reads=True,
    )
    yield Case(
        "profiler",
        f"export of {_EVENTS:,} events, Level1, all files",
        _Export(),
        lambda: _SECONDS,
        Goal(1.0),
        against="limit",
        reads=True,
        once=True,
    )


def _steps(step: Callable[[], Any]) -> None:
    for _ in range(_STEPS):
        step()


def _transformer() -> Callable[[], Any]:
    """Two layers of width 256 on 8 x 64 tokens, forward, backward and an optimizer's step."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).npu()
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(8, 64, 256).npu()

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


class _Process:
    """The steps in a process of its own, which is told when to do them; returns the processor's seconds of them."""

    def __init__(self, profiler: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.profiler", profiler],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        weakref.finalize(self, self._process.kill)
        self._hear()

    def _hear(self) -> float:
        assert self._process.stdout is not None
        while not (said := self._process.stdout.readline()).startswith("took "):
            if not said:
                raise RuntimeError("the process of the benchmark has ended")
        return float(said.split()[1])

    def __call__(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._hear()


def _serve(profiler: str) -> None:
    """The other end of `_Process`: `after` has profiled before, `never` has not imported the profiler."""
    work = functools.partial(_steps, _transformer())
    if profiler == "after":
        _Profiled(work)()
    assert ("torch_npu.profiler" in sys.modules) == (profiler == "after")
    print("took 0", flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        work()
        print("took", time.process_time() - start, flush=True)


class _Profiled:
    """The same under a profiler, from its start to the end of its raw data."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._directory = tempfile.TemporaryDirectory()

    def __call__(self) -> None:
        from torch_npu import profiler

        with contextlib.redirect_stdout(io.StringIO()):
            handler = profiler.tensorboard_trace_handler(self._directory.name, analyse_flag=False)
            with profiler.profile(on_trace_ready=handler):
                self._work()


class _Export:
    """All files of a profile in which each operator launches a kernel; returns the seconds that they take."""

    def __call__(self) -> float:
        from torch_npu.profiler import _analyse

        with tempfile.TemporaryDirectory() as directory:
            profile = Path(directory) / "worker_1_20240101000000000_ascend_pt"
            profile.mkdir()
            self._collect(profile)
            start = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                _analyse.one(str(profile))
            return time.perf_counter() - start

    @staticmethod
    def _collect(profile: Path) -> None:
        from torch_npu.profiler import _ExperimentalConfig, _raw

        writer = _raw.Writer(profile, with_device=True)
        start, tensor = 1_700_000_000_000_000_000, [[[64, 64], "torch.float32", 2]]
        moments = [start + 10_000 * i for i in range(_EVENTS // 2)]
        nothing = [7, -1, 0, 0, "op", None, None, None, 0]
        writer.append("op", [["aten::add", at, at + 9000, *nothing] for at in moments])
        tasks = [
            ["aten::add", 0, 0, 7, at + 1000, at + 8000, tensor, tensor, number]
            for number, at in enumerate(moments)
        ]
        writer.append("task", tasks)
        writer.close()
        config = vars(_ExperimentalConfig(profiler_level="Level1"))
        common = {"activities": ["ProfilerActivity.CPU", "ProfilerActivity.NPU"]}
        info = {"config": {"common_config": common, "experimental_config": config}}
        _raw.write_json(profile / "profiler_info.json", info)


if __name__ == "__main__":
    _serve(sys.argv[1])
