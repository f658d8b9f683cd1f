"""Worker processes with a watchdog: they fork from this one, so that a crash costs no import.

The worker with number k makes the calls k, k + workers, k + 2 workers, ... of the seed's sequence. It tells the number of
the call before it makes it, so that a crash or a hang belongs to a call, and the next worker goes on after it.
"""

from __future__ import annotations

import collections
import dataclasses
import faulthandler
import json
import logging
import mmap
import os
import re
import select
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import SkipTest

import torch

from tests.fuzz.calls import Call, Outcome
from tests.fuzz.guard import LIMIT, Guard
from tests.fuzz.isolate import alike_on_cpu, isolated, unpacked

_KINDS = ("ok", "refused", "internal", "write", "state", "no sample")
_SLOT = struct.Struct(f"qdd{len(_KINDS)}q")  # as Current
_MAX_MEMORY = 4 << 30


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
    #: by the key of a finding whose worker lives: whether the CPU device does the same
    judged: dict[Any, bool] = dataclasses.field(default_factory=dict)
    alike: list[Finding] = dataclasses.field(default_factory=list)  # the CPU device does it too

    def count(self, counts: dict[str, int]) -> None:
        self.counts.update({kind: count for kind, count in counts.items() if count})
        self.calls += sum(counts.values())

    def add(self, finding: Finding) -> bool:
        known = self.findings.get(finding.key)
        if known is not None:
            known.times += 1
            return False
        self.findings[finding.key] = finding
        return True


class Current(NamedTuple):
    """What a worker does: the call, when it began, by which clocks, how many of each kind there were."""

    index: int
    since: float
    cpu: float
    counts: dict[str, int]


def _packed(index: int, counts: Mapping[str, int]) -> bytes:
    now = time.monotonic(), time.process_time()
    return _SLOT.pack(index, *now, *(counts.get(kind, 0) for kind in _KINDS))


class Worker:
    """A forked process that makes calls from `first` on."""

    def __init__(self, plan: Plan, number: int, first: int):
        self.plan, self.number = plan, number
        self.slot = mmap.mmap(-1, _SLOT.size)
        self.slot[:] = _packed(first, {})
        self.said = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self.reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.reading)
            _child(plan, number, first, self.slot, writing, self.said.fileno())
        os.close(writing)
        self.rest = b""

    @property
    def current(self) -> Current:
        index, since, cpu, *counts = _SLOT.unpack(self.slot[:])
        return Current(index, since, cpu, dict(zip(_KINDS, counts, strict=True)))

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

    def starved(self, patience: float) -> bool:
        """Whether it wants to go on with the call, and the machine has hardly let it."""
        stat = self._proc("stat")
        if (
            not stat or stat.rpartition(")")[2].split()[0] not in "RDT"
        ):  # D: pages come back; T: somebody stopped it
            return False
        clock = (~self.pid << 3) | 2  # Linux: the processor's time of another process
        return time.clock_gettime(clock) - self.current.cpu < patience / 2

    def memory(self) -> int:
        """Bytes of the host's memory that it holds."""
        return int((self._proc("statm") or "0 0").split()[1]) * mmap.PAGESIZE

    def _proc(self, name: str) -> str:
        try:
            return Path(f"/proc/{self.pid}/{name}").read_text()
        except FileNotFoundError:  # not a Linux system
            return ""

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
    listed: Sequence[Call] | None = None  # these calls instead of drawn ones
    end: float = float("inf")  # by time.monotonic(), for the workers of a run

    def draw(self, index: int) -> Call:
        if self.listed is not None:
            return self.listed[index].made()
        return Call.drawn(self.seed, index, self.names)

    def run(self, progress: Any = None) -> Result:
        result = Result()
        self.end = time.monotonic() + self.seconds
        workers = [Worker(self, k, k) for k in range(self.workers)]
        while workers:
            time.sleep(0.2)
            for worker in list(workers):
                again = self._look(worker, result)
                if again is not worker:
                    workers.remove(worker)
                    worker.close()
                    if again is not None:
                        workers.append(again)
            if progress is not None:
                progress(result)
        return result

    def _look(self, worker: Worker, result: Result) -> Worker | None:
        """The worker itself while it works, a new one after a crash, a hang or a flood, None at the end."""
        code = worker.ended()
        now = worker.current
        index, counts = now.index, now.counts
        for line in worker.lines():
            self._count(line, result)
        if code is None:
            held, waited = worker.memory(), time.monotonic() - now.since
            hangs = waited > self.patience and not worker.starved(self.patience)
            if not hangs and held < _MAX_MEMORY:
                return worker
            worker.kill()
            outcome = Outcome("hang", f"no end after {self.patience:.0f} s")
            if held >= _MAX_MEMORY:
                outcome = Outcome("memory", f"more than {_MAX_MEMORY >> 30} GiB of the host's")
        elif code == 0:
            result.count(counts)
            return None
        else:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            outcome = Outcome("crash", f"{name} {worker.last_words()}")
        result.count(counts)
        result.calls += 1
        call = self.call(index)
        # A call apart has no limit of memory: there it goes on until its time is over.
        kinds = (outcome.kind, "hang") if outcome.kind == "memory" else (outcome.kind,)
        if alike_on_cpu(call, *kinds):
            result.counts[f"{outcome.kind} on the CPU device too"] += 1
            result.alike.append(Finding(index, call, outcome))
        else:
            result.counts[outcome.kind] += 1
            result.add(Finding(index, call, outcome))
        following = index + self.workers
        return (
            Worker(self, worker.number, following)
            if following < self.calls and time.monotonic() < self.end
            else None
        )

    def call(self, index: int) -> Call:
        drawn = isolated(lambda: self.draw(index))
        if isinstance(drawn, Call):
            return drawn
        if self.listed is not None:
            return self.listed[index]
        call, _ = Call.begun(self.seed, index, self.names)  # a mutation crashed
        return call

    def _count(self, line: dict[str, Any], result: Result) -> None:
        if "targets" in line:
            result.by_target.update(line["targets"])
        else:
            finding = Finding(line["index"], unpacked(line["call"]), Outcome(**line["outcome"]))
            if finding.key not in result.judged:
                result.judged[finding.key] = alike_on_cpu(finding.call, finding.outcome.kind)
            if result.judged[finding.key]:
                result.counts.update({finding.outcome.kind: -1, "refused": 1})
            else:
                result.add(finding)


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
    counts: collections.Counter[str] = collections.Counter()
    names: collections.Counter[str] = collections.Counter()

    def tell(line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        while data:
            data = data[os.write(pipe, data) :]

    index = first
    for index in range(first, plan.calls, plan.workers):
        slot[:] = _packed(index, counts)
        if time.monotonic() > plan.end:
            break
        try:
            call = plan.draw(index)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, SkipTest):
            counts["no sample"] += 1  # the database's own generator does not know the device
            continue
        outcome = call.judged(guard)
        counts[outcome.kind] += 1
        names[call.target] += 1
        if outcome.found:
            tell({"index": index, "call": call.plain(), "outcome": dataclasses.asdict(outcome)})
        if sum(names.values()) >= 50:
            tell({"targets": names})
            names.clear()
    slot[:] = _packed(index, counts)
    tell({"targets": names})


def prepare() -> None:
    """Before the first fork: one thread, nothing started."""
    torch.set_num_threads(1)
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    os.environ.setdefault("SOFTNPU_QUIET", "1")
