"""Programs for tests, each in a process of its own that does not have to import torch_npu again.

One process imports it, touches no device, and forks for each program; its children end as any interpreter does.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests import PYTHONPATH, ROOT


@dataclass(frozen=True)
class Done:
    """How a program ended; a negative code is a signal's."""

    returncode: int
    stdout: str
    stderr: str


class _Nursery:
    """The process that forks."""

    def __init__(self) -> None:
        found = os.pathsep.join([PYTHONPATH, *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forking"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": found},
            text=True,
        )
        atexit.register(self._process.kill)

    def ask(self, scripts: list[dict[str, object]]) -> list[int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(scripts) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


_nursery: _Nursery | None = None


def programs(path: Path, text: str, environments: list[dict[str, str]]) -> list[Done]:
    """Runs a program once for each environment, all at the same time, in the directory `path`."""
    global _nursery
    if _nursery is None:
        _nursery = _Nursery()
    script = path / "program.py"
    script.write_text("import os, torch, torch_npu\n" + textwrap.dedent(text), "utf-8")
    asked: list[dict[str, object]] = [
        {"script": str(script), "cwd": str(path), "env": env, "name": str(path / f"said{number}")}
        for number, env in enumerate(environments)
    ]
    codes = _nursery.ask(asked)
    said = [
        [(path / f"said{number}.{kind}").read_text("utf-8") for kind in ("out", "err")]
        for number in range(len(asked))
    ]
    return [Done(code, *texts) for code, texts in zip(codes, said, strict=True)]


def program(path: Path, text: str, **environment: str) -> Done:
    (done,) = programs(path, text, [environment])
    return done


def _serve() -> None:
    """The forking process: a line asks for programs, a line answers with their codes."""
    import torch_npu  # noqa: F401

    for line in sys.stdin:
        children = []
        for asked in json.loads(line):
            child = os.fork()
            if child == 0:
                _become(asked)
                return
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


def _become(asked: dict) -> None:
    import runpy

    for number, kind in ((1, "out"), (2, "err")):
        file = os.open(f"{asked['name']}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(os.devnull)  # noqa: SIM115
    os.chdir(asked["cwd"])
    os.environ.update(asked["env"])
    runpy.run_path(asked["script"], run_name="__main__")


if __name__ == "__main__":
    _serve()
