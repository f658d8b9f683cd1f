"""A profile as the writers see it: operators in their trees, the tasks they launched, steps, memory, communication."""

from __future__ import annotations

import bisect
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from torch_npu.profiler import _intervals, _kernels
from torch_npu.profiler._communication import Communication, from_row
from torch_npu.profiler._events import STEP, Mark, Op, Step, Task, Usage, group_id
from torch_npu.profiler._raw import Reader

__all__ = ["STEP", "Mark", "Model", "Op", "Step", "Task", "Usage", "group_id"]


_T = TypeVar("_T")


def _of(kind: type[_T], value: object, default: _T) -> _T:
    """A value of a file that anybody may have written."""
    return value if isinstance(value, kind) else default


class Model:
    """Everything that was collected, linked."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.reader = Reader(path)
        self.info = self.reader.info()
        config = _of(dict, self.info.get("config"), {})
        self.common = _of(dict, config.get("common_config"), {})
        self.experimental = _of(dict, config.get("experimental_config"), {})
        self.level = _of(str, self.experimental.get("_profiler_level"), "Level0")
        self.rank = _of(int, self.info.get("rank_id"), -1)
        self.pid = _of(int, _of(dict, self.info.get("start_info"), {}).get("pid"), os.getpid())
        activities = _of(list, self.common.get("activities"), ["ProfilerActivity.CPU"])
        self.with_cpu = "ProfilerActivity.CPU" in activities
        self.with_npu = self.reader.has_device and self.level != "Level_none"

    def global_tid(self, thread: int) -> int:
        """A thread's number in databases: the process and the thread."""
        return self.pid << 32 | thread

    @property
    def detailed(self) -> bool:
        """Level1 and Level2 know types and shapes of kernels."""
        return self.level in ("Level1", "Level2")

    # --- the device ----------------------------------------------------------------------------------

    @functools.cached_property
    def tasks(self) -> list[Task]:
        """In the order of their start; a stream does one thing at a time."""
        facts = {name: (kind, core) for name, kind, core in self.reader.rows("kernel")}
        tasks = []
        for row in self.reader.rows("task"):
            name, device, stream, thread, start, end, inputs, outputs, number = row
            kind, core = facts.get(name) or (_kernels.plain(name), "AI_VECTOR_CORE")
            copy = core == _kernels.COPY_CORE
            if not copy and _kernels.on_ai_cpu(inputs):
                core = "AI_CPU"
            where = (device, stream, thread, start, end)
            tasks.append(Task(name, *where, inputs, outputs, number, kind, core, copy))
        tasks.sort(key=lambda task: (task.start, task.end))
        ends: dict[tuple[int, int], int] = {}
        count: dict[tuple[int, int], int] = {}
        for task in tasks:
            place = (task.device, task.stream)
            before = ends.get(place)
            if before is not None:
                task.start = max(task.start, before)  # threads share the stream
                task.wait = task.start - before
            task.end = max(task.end, task.start)
            ends[place] = task.end
            task.number = count[place] = count.get(place, -1) + 1
        return tasks

    @functools.cached_property
    def kernels(self) -> list[Task]:
        """Tasks that compute."""
        return [task for task in self.tasks if not task.copy]

    @functools.cached_property
    def communications(self) -> list[Communication]:
        rows = (from_row(row) for row in self.reader.rows("communication"))
        return sorted(rows, key=lambda one: one.start_ns)

    @functools.cached_property
    def named_communications(self) -> list[tuple[str, Communication]]:
        """With names as HCCL gives them: the operation, three digits of the group, the number in the group."""
        count: dict[str, int] = {}
        named = []
        for one in self.communications:
            number = count[one.group] = count.get(one.group, -1) + 1
            named.append((f"hcom_{one.name}__{group_id(one.group)[-3:]}_{number}_1", one))
        return named

    @functools.cached_property
    def devices(self) -> list[int]:
        used = {task.device for task in self.tasks} | {c.device for c in self.communications}
        return sorted(used) or [0]

    def computing(self, device: int) -> list[_intervals.Span]:
        return _intervals.merge((t.start, t.end) for t in self.kernels if t.device == device)

    def communicating(self, device: int) -> list[_intervals.Span]:
        return _intervals.merge(
            (c.start_ns, c.end_ns) for c in self.communications if c.device == device
        )

    # --- the host ------------------------------------------------------------------------------------

    @functools.cached_property
    def ops(self) -> list[Op]:
        """Per thread in the order of their start, parents before children; what runs inside a device task is not of the
        program and is left out."""
        threads: dict[int, list[Op]] = {}
        for row in self.reader.rows("op"):
            threads.setdefault(row[3], []).append(Op(*row))
        kept: list[Op] = []
        for thread, ops in threads.items():
            ops.sort(key=lambda op: (op.start, -op.end))
            outside = list(_outside(ops, self._busy(thread)))
            # An annotation may begin in one Python call and end in another: two trees.
            kept += _nest(op for op in outside if op.kind != "python")
            kept += _nest(op for op in outside if op.kind == "python")
        self._link(kept)
        return kept

    def _busy(self, thread: int) -> list[_intervals.Span]:
        return _intervals.merge((t.start, t.end) for t in self.tasks if t.thread == thread)

    def _link(self, ops: list[Op]) -> None:
        """Finds the innermost operator in which each task was launched, and sums times up to the root."""
        by_thread: dict[int, list[Op]] = {}
        for op in ops:
            if op.kind != "python":
                by_thread.setdefault(op.thread, []).append(op)
        starts = {thread: [op.start for op in list_] for thread, list_ in by_thread.items()}
        for task in self.tasks:
            found = by_thread.get(task.thread)
            if found is None:
                continue
            index = bisect.bisect_right(starts[task.thread], task.start) - 1
            owner: Op | None = found[index] if index >= 0 else None
            while owner is not None and owner.end < task.start:
                owner = owner.parent
            if owner is None:
                continue
            task.op = owner
            owner.tasks.append(task)
            core = 0 if task.copy or task.core == "AI_CPU" else task.duration
            while owner is not None:
                owner.device_total += task.duration
                owner.device_total_core += core
                owner = owner.parent

    @functools.cached_property
    def steps(self) -> list[Step]:
        """Steps on the host, each until its last task ended."""
        spans = {
            int(op.name.removeprefix(STEP)): (op.start, op.end)
            for op in self.ops
            if op.kind == "user" and op.name.startswith(STEP)
        }
        for number, start, end in self.reader.rows("step"):
            spans.setdefault(number, (start, end))
        ordered = sorted(spans.items(), key=lambda item: item[1])
        steps = []
        starts = [task.start for task in self.tasks]
        for number, (start, end) in ordered:
            last = bisect.bisect_right(starts, end) - 1
            if last >= 0 and starts[last] >= start:
                end = max(end, self.tasks[last].end)
            steps.append(Step(number, start, end))
        return steps

    def step_at(self, time: int) -> Step | None:
        index = bisect.bisect_right(self._step_starts, time) - 1
        if index >= 0 and time <= self.steps[index].end:
            return self.steps[index]
        return None

    @functools.cached_property
    def _step_starts(self) -> list[int]:
        return [step.start for step in self.steps]

    @functools.cached_property
    def marks(self) -> list[Mark]:
        return [
            Mark(message, domain, start, end, tuple(stream) if stream else None, thread)
            for message, domain, start, end, stream, thread in self.reader.rows("mark")
        ]

    @functools.cached_property
    def collections(self) -> list[tuple[int, int, int]]:
        """Garbage collections: start, end, thread."""
        return [(start, end, thread) for _, start, end, thread in self.reader.rows("gc")]

    # --- memory --------------------------------------------------------------------------------------

    @functools.cached_property
    def memory(self) -> list[Usage]:
        """Changes of device memory in order; a device that does not change is not there."""
        totals: dict[int, list[int]] = {
            device: [allocated, reserved, active]
            for device, allocated, reserved, active, _ in self.reader.rows("baseline")
        }
        signs = {
            "alloc": (1, 0, 1), "free_requested": (-1, 0, 0), "free_completed": (0, 0, -1),
            "segment_alloc": (0, 1, 0), "segment_free": (0, -1, 0),
        }  # fmt: skip
        usages = []
        for action, address, size, stream, device, time in self.reader.rows("memory"):
            now = totals.setdefault(device, [0, 0, 0])
            for index, sign in enumerate(signs[action]):
                now[index] = max(0, now[index] + sign * size)
            usages.append(Usage(action, address, size, stream, device, time, *now))
        return usages

    def op_at(self, time: int) -> Op | None:
        """The innermost operator that ran at a moment; the one with a task there, if several threads were busy."""
        best: Op | None = None
        for starts, ops in self._by_thread:
            index = bisect.bisect_right(starts, time) - 1
            op: Op | None = ops[index] if index >= 0 else None
            while op is not None and op.end < time:
                op = op.parent
            if op is not None and (best is None or op.start > best.start):
                best = op
        return best

    @functools.cached_property
    def _by_thread(self) -> list[tuple[list[int], list[Op]]]:
        threads: dict[int, list[Op]] = {}
        for op in self.ops:
            if op.kind == "op":
                threads.setdefault(op.thread, []).append(op)
        return [([op.start for op in ops], ops) for ops in threads.values()]


def _outside(ops: list[Op], busy: list[_intervals.Span]) -> Iterator[Op]:
    """Operators that are not part of a task's own work."""
    starts = [span[0] for span in busy]
    for op in ops:
        index = bisect.bisect_right(starts, op.start) - 1
        if index < 0 or op.start == busy[index][0] or op.end > busy[index][1] or op.kind == "user":
            yield op


def _nest(ops: Iterator[Op]) -> list[Op]:
    """Finds each operator's parent; one that overlaps its neighbor in part ends where that one ends."""
    nested: list[Op] = []
    open_: list[Op] = []
    for op in ops:
        while open_ and open_[-1].end <= op.start:
            open_.pop()
        if open_:
            parent = open_[-1]
            op.end = min(op.end, parent.end)
            op.parent = parent
            parent.children_ns += op.end - op.start
        open_.append(op)
        nested.append(op)
    return nested
