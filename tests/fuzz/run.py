"""Worker processes with a watchdog: they fork from this one, so that a crash costs no import.

The worker with number k makes the calls k, k + workers, k + 2 workers, ... of the seed's sequence. It tells the number of
the call before it makes it, so that a crash or a hang belongs to a call, and the next worker goes on after it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import faulthandler
import json
import mmap
import os
import re
import select
import signal
import struct
import sys
import tempfile
import time
from typing import Any

import torch

from tests.fuzz.calls import Call, Outcome
from tests.fuzz.guard import Guard
from tests.fuzz.mutations import Mutation

LIMIT = 64 << 20  # bytes of one allocation
_SLOT = struct.Struct("qd")  # the call, and when it began


@dataclasses.dataclass
class Finding:
    index: int
    call: Call
    outcome: Outcome
    times: int = 1

    @property
    def key(self) -> tuple[str, str, str]:
        return (
            self.call.target,
            self.outcome.kind,
            re.sub(r"[\d\[\](), -]+", "#", self.outcome.message)[:80],
        )


@dataclasses.dataclass
class Result:
    calls: int = 0
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    by_target: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    findings: dict[Any, Finding] = dataclasses.field(default_factory=dict)

    def add(self, finding: Finding) -> bool:
        known = self.findings.get(finding.key)
        if known is not None:
            known.times += 1
            return False
        self.findings[finding.key] = finding
        return True


class Worker:
    """A forked process that makes calls from `first` on."""

    def __init__(self, plan: Plan, number: int, first: int):
        self.plan, self.number = plan, number
        self.slot = mmap.mmap(-1, _SLOT.size)
        self.slot[:] = _SLOT.pack(first, time.monotonic())
        self.said = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reading)
            _child(plan, number, first, self.slot, writing, self.said.fileno())
        os.close(writing)
        self.rest = b""

    @property
    def current(self) -> tuple[int, float]:
        return _SLOT.unpack(self.slot[:])

    def lines(self) -> list[dict[str, Any]]:
        """What it has told since the last time."""
        while select.select([self.reading], [], [], 0)[0]:
            part = os.read(self.reading, 1 << 16)
            if not part:
                break
            self.rest += part
        *whole, self.rest = self.rest.split(b"\n")
        return [json.loads(line) for line in whole]

    def ended(self) -> int | None:
        done, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if done else None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def last_words(self) -> str:
        self.said.seek(0)
        text = self.said.read().decode("utf-8", "replace")
        current = text.partition("Current thread")[2].partition("\n\n")[0]
        frames = [line.strip() for line in current.splitlines() if line.strip().startswith("File")]
        words = [line for line in text.splitlines() if "what()" in line or "terminate" in line]
        return " | ".join(words + frames[:2])

    def close(self) -> None:
        os.close(self.reading)
        self.slot.close()
        self.said.close()


@dataclasses.dataclass
class Plan:
    seed: int
    calls: int
    seconds: float
    workers: int
    names: list[str]
    patience: float = 30.0
    guard: str | None = None

    def run(self, progress: Any = None) -> Result:
        result = Result()
        end = time.monotonic() + self.seconds
        workers = [Worker(self, k, k) for k in range(self.workers)]
        while workers:
            time.sleep(0.2)
            for worker in list(workers):
                again = self._look(worker, result, end)
                if again is not worker:
                    workers.remove(worker)
                    worker.close()
                    if again is not None:
                        workers.append(again)
            if progress is not None:
                progress(result)
        return result

    def _look(self, worker: Worker, result: Result, end: float) -> Worker | None:
        """The worker itself while it works, a new one after a crash or a hang, None at the end."""
        code = worker.ended()
        index, since = worker.current
        for line in worker.lines():
            self._count(line, result)
        if code is None:
            if time.monotonic() - since < self.patience:
                return worker
            worker.kill()
            outcome = Outcome("hang", f"no end after {self.patience:.0f} s")
        elif code == 0:
            return None
        else:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            outcome = Outcome("crash", f"{name} {worker.last_words()}")
        result.calls += 1
        result.counts[outcome.kind] += 1
        result.add(Finding(index, self.call(index), outcome))
        following = index + self.workers
        return (
            Worker(self, worker.number, following)
            if following < self.calls and time.monotonic() < end
            else None
        )

    def call(self, index: int) -> Call:
        return _isolated(lambda: Call.drawn(self.seed, index, self.names)) or Call("unknown")

    def _count(self, line: dict[str, Any], result: Result) -> None:
        if "counts" in line:
            result.counts.update(line["counts"])
            result.by_target.update(line["targets"])
            result.calls += sum(line["counts"].values())
        else:
            call = _call(line["call"])
            result.add(Finding(line["index"], call, Outcome(**line["outcome"])))


def _call(shown: dict[str, Any]) -> Call:
    return Call(**shown | {"mutations": tuple(Mutation(*one) for one in shown["mutations"])})


def _child(plan: Plan, number: int, first: int, slot: mmap.mmap, pipe: int, said: int) -> None:
    """Never returns."""
    code = 70
    try:
        os.dup2(said, 2)
        faulthandler.enable(said)
        _work(plan, first, slot, pipe)
        code = 0
    except BaseException as wrong:  # the parent is told by the exit code
        sys.stderr.write(f"File worker: {type(wrong).__name__}: {wrong}\n")
        sys.stderr.flush()
    os._exit(code)


def _work(plan: Plan, first: int, slot: mmap.mmap, pipe: int) -> None:
    guard = Guard(plan.guard, LIMIT) if plan.guard is not None else None
    end = time.monotonic() + plan.seconds
    counts: collections.Counter[str] = collections.Counter()
    names: collections.Counter[str] = collections.Counter()

    def tell(line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        while data:
            data = data[os.write(pipe, data) :]

    for index in range(first, plan.calls, plan.workers):
        slot[:] = _SLOT.pack(index, time.monotonic())
        if time.monotonic() > end:
            break
        call = Call.drawn(plan.seed, index, plan.names)
        outcome = call.judged(guard)
        counts[outcome.kind] += 1
        names[call.target] += 1
        if outcome.found:
            shown = call.plain()
            tell({"index": index, "call": shown, "outcome": dataclasses.asdict(outcome)})
        if sum(counts.values()) >= 50:
            tell({"counts": counts, "targets": names})
            counts.clear()
            names.clear()
    tell({"counts": counts, "targets": names})


# --- minimising --------------------------------------------------------------------------------------------


def _isolated(function: Any, patience: float = 60.0) -> Any:
    """What a function returns in a forked process (plain values or a Call); None if it crashed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 2)
            made = function()
            shown = made.plain() if isinstance(made, Call) else dataclasses.asdict(made)
            os.write(writing, json.dumps([type(made).__name__, shown]).encode())
        os._exit(0)
    os.close(writing)
    told, end = b"", time.monotonic() + patience
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], max(left, 0))[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reading)
            return Outcome("hang", f"no end after {patience:.0f} s")
        part = os.read(reading, 1 << 16)
        if not part:
            break
        told += part
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0:
        return Outcome("crash", signal.Signals(-status).name)
    if not told:
        return None
    kind, shown = json.loads(told)
    return _call(shown) if kind == "Call" else Outcome(**shown)


def judged_apart(call: Call, guard: str | None, patience: float = 30.0) -> Outcome:
    def judge() -> Outcome:
        return call.judged(Guard(guard, LIMIT) if guard is not None else None)

    return _isolated(judge, patience) or Outcome("refused")


def minimized(call: Call, kind: str, guard: str | None) -> Call:
    """The call with as few mutations and as plain a mode as still show the finding."""
    tries = [dataclasses.replace(call, mode="plain"), dataclasses.replace(call, strict=1)]
    for smaller in tries:
        if smaller != call and judged_apart(smaller, guard).kind == kind:
            call = dataclasses.replace(call, mode=smaller.mode, strict=smaller.strict)
    position = 0
    while position < len(call.mutations):
        rest = call.mutations[:position] + call.mutations[position + 1 :]
        smaller = dataclasses.replace(call, mutations=rest)
        if judged_apart(smaller, guard).kind == kind:
            call = smaller
        else:
            position += 1
    return call


def prepare() -> None:
    """Before the first fork: one thread, nothing started."""
    torch.set_num_threads(1)
    os.environ.setdefault("SOFTNPU_QUIET", "1")
