"""One call in a forked process of its own, and the smallest call that still shows a finding."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import time
from typing import Any

from tests.fuzz import targets
from tests.fuzz.calls import Call, Outcome
from tests.fuzz.guard import LIMIT, Guard
from tests.fuzz.mutations import Mutation


def unpacked(shown: dict[str, Any]) -> Call:
    return Call(**shown | {"mutations": tuple(Mutation(*one) for one in shown["mutations"])})


def isolated(function: Any, patience: float = 60.0) -> Any:
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
    return unpacked(shown) if kind == "Call" else Outcome(**shown)


def judged_apart(call: Call, guard: str | None, patience: float = 30.0) -> Outcome:
    def judge() -> Outcome:
        return call.judged(Guard(guard, LIMIT) if guard is not None else None)

    return isolated(judge, patience) or Outcome("refused")


def alike_on_cpu(call: Call, *kinds: str) -> bool:
    """Whether the call ends like that on the CPU device too: then it is PyTorch's affair. Apart, since there nobody looks
    at what its kernels trust, and a heap that they have damaged ends the process at a later call."""
    on_cpu = targets.on_cpu_too(call.target) and call.device != "cpu"
    patience = 30.0 if "hang" in kinds else 300.0
    return on_cpu and judged_apart(call.on_cpu(), None, patience).kind in kinds


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
