"""Runs a function on several ranks, each in its own process, and brings back what they return or raise.

Importing torch costs seconds, so ranks are forks of one server process, which has imported everything and done nothing.
A job with `fresh=True` starts new interpreters instead, as a launcher does.
"""

from __future__ import annotations

import importlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

import torch_npu
from softnpu import settings
from tests import PYTHONPATH, ROOT

#: read when torch_npu is imported: a server serves one value of each
AT_IMPORT = ("SOFTNPU_SOC",)
#: imported by the server for all ranks, besides torch_npu
PRELOADED = (
    "pytest",
    "torch._dynamo",
    "torch._refs",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
)


class Rank:
    """One process of a job."""

    def __init__(self, process: subprocess.Popen[bytes] | Fork, answer: Path) -> None:
        self.process, self.answer = process, answer

    def result(self, timeout: float) -> Any:
        code = self.process.wait(timeout)
        if not self.answer.exists():
            raise RuntimeError(f"a rank ended with {code} and no answer")
        ok, value = pickle.loads(self.answer.read_bytes())
        if not ok:
            raise AssertionError(f"a rank failed:\n{value}")
        return value


class Fork:
    """A child of the server, with the methods of Popen that tests use."""

    def __init__(self, server: Server, pid: int) -> None:
        self.server, self.pid = server, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.server.ask(("poll", self.pid))
        return self.returncode

    def wait(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(0.02)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Server:
    """A process that forks ranks: answers ("fork", folder, rank, ranks, environment) by a pid."""

    known: dict[tuple[str | None, ...], Server] = {}

    def __init__(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.distributed.job"],
            cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    @classmethod
    def of(cls, env: dict[str, str]) -> Server:
        key = tuple(env.get(name) for name in AT_IMPORT)
        if key not in cls.known or cls.known[key].process.poll() is not None:
            cls.known[key] = cls(env)
        return cls.known[key]

    def ask(self, question: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        pickle.dump(question, self.process.stdin)
        self.process.stdin.flush()
        return pickle.load(self.process.stdout)


def start(
    function: Callable[..., Any],
    ranks: int,
    *args: Any,
    group: bool = True,
    env: dict[str, str] | None = None,
    fresh: bool = False,
) -> list[Rank]:
    """Starts `function(rank, *args)` on each rank, inside an hccl group unless `group` is False."""
    folder = Path(tempfile.mkdtemp(prefix="softnpu-job-"))
    write_task(folder, function, args, group)
    environment = environment_with(env)
    processes: list[subprocess.Popen[bytes] | Fork] = []
    for rank in range(ranks):
        if fresh:
            command = [*COMMAND, str(folder), str(rank), str(ranks)]
            processes.append(subprocess.Popen(command, cwd=ROOT, env=environment))
        else:
            server = Server.of(environment)
            pid = server.ask(("fork", str(folder), rank, ranks, environment))
            processes.append(Fork(server, pid))
    return [Rank(process, folder / f"answer{rank}") for rank, process in enumerate(processes)]


#: starts one rank in an interpreter of its own; followed by the folder, the rank and the number of ranks
COMMAND = [sys.executable, "-m", "tests.distributed.job"]


def write_task(folder: Path, function: Callable[..., Any], args: Any, group: bool) -> None:
    task = function.__module__, function.__qualname__, args, group
    (folder / "task").write_bytes(pickle.dumps(task))


def environment_with(env: dict[str, str] | None) -> dict[str, str]:
    """The ranks have the chip of the test that starts them."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH, "SOFTNPU_SOC": settings.current().soc}
    return {**os.environ, **own, **(env or {})}


def run(
    function: Callable[..., Any], ranks: int, *args: Any, timeout: float = 240, **options: Any
) -> list[Any]:
    """What the function returns on each rank; raises if it fails on one."""
    started = start(function, ranks, *args, **options)
    try:
        return [rank.result(timeout) for rank in started]
    finally:
        stop(started)


def stop(started: list[Rank]) -> None:
    """No process of the job is left, and nothing of its folder."""
    for rank in started:
        rank.process.kill()
        rank.process.wait(30)
        shutil.rmtree(rank.answer.parent, ignore_errors=True)


def store_options(folder: str, rank: int, ranks: int) -> dict[str, Any]:
    return {"init_method": f"file://{folder}/store", "rank": rank, "world_size": ranks}


def main(folder: str, rank: int, ranks: int) -> None:
    module, name, args, group = pickle.loads((Path(folder) / "task").read_bytes())
    try:
        function = getattr(__import__(module, fromlist=[name]), name)
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


def serve() -> None:
    """The server: forks, and tells how forks ended, until nobody asks any more."""
    for module in PRELOADED:
        importlib.import_module(module)
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what ranks print is no answer
    ended: dict[int, int] = {}
    while True:
        try:
            question = pickle.load(questions)
        except EOFError:
            return
        if question[0] == "fork":
            answer = os.fork()
            if answer == 0:
                be_rank(*question[1:])
        else:
            answer = ended.get(question[1])
            if answer is None:
                pid, status = os.waitpid(question[1], os.WNOHANG)
                answer = None if pid == 0 else os.waitstatus_to_exitcode(status)
                if answer is not None:
                    ended[pid] = answer
        pickle.dump(answer, answers)
        answers.flush()


def be_rank(folder: str, rank: int, ranks: int, environment: dict[str, str]) -> NoReturn:
    """The life of a fork."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        dist.set_debug_level_from_env()
        torch.set_num_threads(1)
        main(folder, rank, ranks)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    else:
        serve()
