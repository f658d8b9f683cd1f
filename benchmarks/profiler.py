"""What profiling costs: a small Transformer's step with a profiler, after one, and the export of events.

100,000 events may take 20 seconds; a twentieth of them is measured against a twentieth of the time.
"""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Case, Goal
from torch_npu import profiler
from torch_npu.profiler import _analyse, _raw

ON = Goal(2.0)
OFF = Goal(1.03)
EXPORT = Goal(1.0)
_EVENTS = 5_000
_SECONDS = 1.0
_STEPS = 5


def cases() -> Iterator[Case]:
    step = _transformer()
    many = functools.partial(_steps, step)
    yield Case(
        "profiler", f"{_STEPS} transformer steps, Level0, CPU and NPU", _Profiled(many), many, ON, against="no profiler"
    )  # fmt: skip
    yield Case(
        "profiler",
        "transformer step, after a profile",
        step,
        _transformer(),
        OFF,
        against="another",
    )
    yield Case(
        "profiler",
        f"export of {_EVENTS:,} events",
        _export(),
        _wait,
        EXPORT,
        against=f"{_SECONDS:g} s",
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


class _Profiled:
    """The same under a profiler, from its start to the end of its raw data."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._directory = tempfile.TemporaryDirectory()

    def __call__(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            handler = profiler.tensorboard_trace_handler(self._directory.name, analyse_flag=False)
            with profiler.profile(on_trace_ready=handler):
                self._work()


def _export() -> Callable[[], None]:
    """All files of a profile in which each operator launches a kernel."""
    directory = tempfile.TemporaryDirectory()
    profile = Path(directory.name) / "worker_1_20240101000000000_ascend_pt"
    profile.mkdir()
    writer = _raw.Writer(profile, with_device=True)
    half, start = _EVENTS // 2, 1_700_000_000_000_000_000
    tensor = [[[64, 64], "torch.float32", 2]]
    ops = [
        ["aten::add", start + 10_000 * i, start + 10_000 * i + 9000, 7, -1, 0, 0, "op", None, None, None, 0]
        for i in range(half)
    ]  # fmt: skip
    tasks = [
        [
            "aten::add",
            0,
            0,
            7,
            start + 10_000 * i + 1000,
            start + 10_000 * i + 8000,
            tensor,
            tensor,
            i,
        ]
        for i in range(half)
    ]
    writer.append("op", ops)
    writer.append("task", tasks)
    writer.close()
    config = vars(profiler._ExperimentalConfig(profiler_level="Level1"))
    activities = ["ProfilerActivity.CPU", "ProfilerActivity.NPU"]
    info = {"config": {"common_config": {"activities": activities}, "experimental_config": config}}
    _raw.write_json(profile / "profiler_info.json", info)

    def export(_: Any = directory) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            _analyse.one(str(profile))

    return export


def _wait() -> None:
    """The time that the export may take."""
    time.sleep(_SECONDS)
