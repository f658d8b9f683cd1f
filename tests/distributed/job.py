"""Runs a function on several ranks, each in its own process, and brings back what they return or raise."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

import torch_npu

ROOT = Path(__file__).resolve().parents[2]


class Rank:
    """One process of a job."""

    def __init__(self, process: subprocess.Popen[bytes], answer: Path) -> None:
        self.process, self.answer = process, answer

    def result(self, timeout: float) -> Any:
        code = self.process.wait(timeout)
        if not self.answer.exists():
            raise RuntimeError(f"a rank ended with {code} and no answer")
        ok, value = pickle.loads(self.answer.read_bytes())
        if not ok:
            raise AssertionError(f"a rank failed:\n{value}")
        return value


def start(
    function: Callable[..., Any], ranks: int, *args: Any, group: bool = True, env: dict[str, str] | None = None
) -> list[Rank]:  # fmt: skip
    """Starts `function(rank, *args)` on each rank, inside an hccl group unless `group` is False."""
    folder = Path(tempfile.mkdtemp(prefix="softnpu-job-"))
    (folder / "task").write_bytes(
        pickle.dumps((function.__module__, function.__qualname__, args, group))
    )
    started = []
    for rank in range(ranks):
        command = [
            sys.executable,
            "-m",
            "tests.distributed.job",
            str(folder),
            str(rank),
            str(ranks),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(env or {})}
        process = subprocess.Popen(command, cwd=ROOT, env=environment)
        started.append(Rank(process, folder / f"answer{rank}"))
    return started


def run(
    function: Callable[..., Any], ranks: int, *args: Any, timeout: float = 120, **options: Any
) -> list[Any]:
    """What the function returns on each rank; raises if it fails on one."""
    started = start(function, ranks, *args, **options)
    try:
        return [rank.result(timeout) for rank in started]
    finally:
        for rank in started:
            if rank.process.poll() is None:
                rank.process.kill()
                rank.process.wait()


def store_options(folder: str, rank: int, ranks: int) -> dict[str, Any]:
    return {"init_method": f"file://{folder}/store", "rank": rank, "world_size": ranks}


def main(folder: str, rank: int, ranks: int) -> None:
    module, name, args, group = pickle.loads((Path(folder) / "task").read_bytes())
    function = getattr(__import__(module, fromlist=[name]), name)
    try:
        if group:
            torch_npu.npu.set_device(rank % torch_npu.npu.device_count())
            limit = float(os.environ.get("TEST_JOB_TIMEOUT", "60"))
            dist.init_process_group(
                "hccl", timeout=timedelta(seconds=limit), **store_options(folder, rank, ranks)
            )
            answer = True, function(rank, *args)
            dist.destroy_process_group()
        else:
            answer = True, function(rank, ranks, folder, *args)
    except BaseException:  # whatever it is, the test that waits must see it
        answer = False, traceback.format_exc()
    target = Path(folder) / f"answer{rank}"
    target.with_suffix(".part").write_bytes(pickle.dumps(answer))
    target.with_suffix(".part").rename(target)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
