"""Runs tests in other processes, one for each set of settings, and reports them as if they had run here."""

from __future__ import annotations

import builtins
import importlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.reports import TestReport

#: options that make no sense in a worker: it is one process, without a terminal
_RESET: dict[str, Any] = {
    "numprocesses": None,
    "maxprocesses": None,
    "dist": "no",
    "distload": False,
    "tx": [],
    "usepdb": False,
    "trace": False,
    "looponfail": False,
    "basetemp": None,
    "collectonly": False,
    "stepwise": False,
    "lf": False,
    "failedfirst": False,
    "xmlpath": None,
    "maxfail": 0,
    "npu_soc": None,
    "npu_memory_limit": None,
    "npu_sanitize": False,
}


class WorkerDied(Exception):
    """The process ended in the middle of a test; the text says how, and what it printed last."""


class Worker:
    """A process of pytest that runs tests of the given files by name."""

    def __init__(
        self, config: pytest.Config, files: list[str], variables: dict[str, str],
        job: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        ours, theirs = multiprocessing.Pipe()
        self.link = ours
        self.printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        shown = config.getoption("capture") == "no"
        command = [sys.executable, "-m", "softnpu.testing._worker", str(theirs.fileno())]
        path = os.pathsep.join(p for p in sys.path if p)
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **variables, "PYTHONPATH": path},
            cwd=config.invocation_params.dir,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=None if shown else self.printed,
            stderr=None if shown else self.printed,
        )
        theirs.close()
        start = {
            "path": sys.path,
            "options": _options(config),
            "args": [str(config.rootpath / file) for file in files],
            "job": job,
        }
        self.link.send_bytes(pickle.dumps(start))
        self.ready = False

    def _receive(self) -> Any:
        try:
            return self.link.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerDied(self._died()) from None

    def _died(self) -> str:
        code = self.process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.printed.seek(0)
        last = self.printed.read().decode(errors="replace")[-4000:]
        return f"the process of the test ended with {how}" + (f"\n{last}" if last else "")

    def run(self, name: str, following: str | None) -> Iterator[tuple[Any, ...]]:
        """The messages of one test."""
        problems: list[str] = []
        while not self.ready:
            message = self._receive()
            if message[0] in ("collect", "internal"):
                problems.append(message[1])
            elif message[0] == "warning":
                yield message
            elif message[0] == "end":
                raise WorkerDied(
                    "\n".join(["the process of the test collected nothing", *problems])
                )
            self.ready = message[0] == "ready"
        self.link.send((name, following))
        while True:
            message = self._receive()
            if message[0] == "done":
                return
            if message[0] in ("unknown", "internal", "end"):
                more = "\n".join([*problems, str(message[1])])
                raise WorkerDied(f"the process of the test cannot run {name}: {more}")
            yield message

    def close(self) -> None:
        if self.process.poll() is None:
            try:
                self.link.send(None)
                while self._receive()[0] != "end":
                    pass
            except (WorkerDied, OSError):
                pass
        self.link.close()
        self.process.wait()
        self.printed.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.link.close()
        self.printed.close()


def _options(config: pytest.Config) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in vars(config.option).items():
        try:
            pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError):
            continue
        found[name] = value
    found.update({name: value for name, value in _RESET.items() if name in found})
    plugins = [p for p in found.get("plugins", []) if p != "softnpu.testing"]
    found["plugins"] = [*plugins, "no:terminal", "no:cacheprovider"]
    found["rootdir"] = str(config.rootpath)
    found["inifilename"] = str(config.inipath) if config.inipath else None
    return found


class Processes:
    """The workers of a session, by their settings."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.workers: dict[tuple[tuple[str, str], ...], Worker] = {}
        self.queues: dict[tuple[tuple[str, str], ...], list[pytest.Item]] | None = None

    def protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None, variables: dict[str, str], differing: Any
    ) -> None:  # fmt: skip
        key = tuple(sorted(variables.items()))
        if self.queues is None:
            self.queues = {}
            for one in item.session.items:
                other = tuple(sorted(differing(one).items()))
                self.queues.setdefault(other, []).append(one)
        mates = self.queues[key]
        following = self._following(item, nextitem, mates)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        try:
            if key not in self.workers:
                files = list(dict.fromkeys(i.nodeid.split("::")[0] for i in mates))
                self.workers[key] = Worker(self.config, files, variables)
            for message in self.workers[key].run(item.nodeid, following):
                forward(self.config, item, message)
        except WorkerDied as died:
            self.workers.pop(key).close()
            item.ihook.pytest_runtest_logreport(report=failure(item, str(died)))
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _following(
        self, item: pytest.Item, nextitem: pytest.Item | None, mates: list[pytest.Item]
    ) -> str | None:  # fmt: skip
        """The test after this one in its worker; with xdist the order is not known further than the next test."""
        if hasattr(self.config, "workerinput"):
            return nextitem.nodeid if nextitem in mates else None  # type: ignore[union-attr]
        at = mates.index(item) + 1
        return mates[at].nodeid if nextitem is not None and at < len(mates) else None

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.workers = {}


def forward(config: pytest.Config, item: pytest.Item, message: tuple[Any, ...]) -> None:
    """A message of a worker becomes the call of the hook that it was there."""
    if message[0] == "report":
        report = config.hook.pytest_report_from_serializable(config=config, data=message[1])
        item.ihook.pytest_runtest_logreport(report=report)
    elif message[0] == "warning":
        _, data, when, nodeid, location = message
        warning = warnings.WarningMessage(
            data["text"], _category(*data["category"]), data["filename"], data["lineno"]
        )
        config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warning,
                "when": when,
                "nodeid": nodeid,
                "location": location,
            }
        )


def _category(module: str, name: str) -> type[Warning]:
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        found = getattr(builtins, name, None)
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning


def failure(item: pytest.Item, text: str, when: str = "call") -> TestReport:
    return TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={name: 1 for name in item.keywords},
        outcome="failed",
        longrepr=text,
        when=when,  # type: ignore[arg-type]
        sections=[],
        duration=0.0,
        start=0.0,
        stop=0.0,
    )
