"""trace_view.json: the timeline, for MindStudio Insight, Perfetto and chrome://tracing.

Processes from top to bottom: Python with a track for each thread and for the task queue, the garbage collector, marks, CANN
(from Level1 on), the device with a track for each stream, its memory, communication, overlap analysis.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler import _intervals
from torch_npu.profiler._model import Model, Op, Task
from torch_npu.profiler.writers._csv import us
from torch_npu.profiler.writers.operator_details import dims

NAME = "trace_view.json"

Event = dict[str, Any]

# The order of processes, which is part of their ids.
_GC, _MARKS, _CANN, _HARDWARE, _MEMORY, _HCCL, _OVERLAP = 1, 6, 7, 14, 19, 28, 29
_CATEGORIES = {"op": "cpu_op", "user": "cpu_op", "python": "python_function"}
_NO_MODEL = 4294967295
QUEUE = 1_000_000_000  # the track of the task queue's thread, which does not exist here

PYTHON = 500_000_000  # added to a thread's id for the track of its Python calls


def write(model: Model, out: Path) -> None:
    export(model, out / NAME)


def export(model: Model, path: Path) -> None:
    """Writes batch by batch, so that long traces need little memory."""
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    with open(path, "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o640)) as file:
        before, source = "[", events(model)
        while batch := list(itertools.islice(source, 4096)):
            file.write(before + encode(batch)[1:-1])
            before = ",\n"
        file.write("]" if before != "[" else "[]")


def events(model: Model) -> Iterator[Event]:
    if model.with_cpu:
        yield from _python(model)
        yield from _collections(model)
    yield from _marks(model)
    if model.with_npu:
        if model.detailed:
            yield from _cann(model)
        yield from _hardware(model)
        yield from _communication(model)
        yield from _overlap(model)
    yield from _memory(model)


# --- the parts of events -----------------------------------------------------------------------------------


def _pid(model: Model, order: int, device: int = 31) -> int:
    return model.pid << 10 | order << 5 | device


def _span(name: str, pid: int, tid: int, start: int, end: int, cat: str, args: Any) -> Event:
    return {
        "ph": "X", "name": name, "pid": pid, "tid": tid, "ts": us(start), "dur": (end - start) / 1000, "cat": cat,
        "args": args,
    }  # fmt: skip


def _flow(
    name: str, number: int | str, cat: str, begin: tuple[int, int, int], end: tuple[int, int, int]
) -> Iterator[Event]:
    for ph, (pid, tid, when) in (("s", begin), ("f", end)):
        yield {
            "ph": ph,
            "bp": "e",
            "name": name,
            "id": number,
            "pid": pid,
            "tid": tid,
            "ts": us(when),
            "cat": cat,
        }


def _process(pid: int, name: str, label: str, order: int) -> Iterator[Event]:
    for key, args in (
        ("process_name", {"name": name}),
        ("process_labels", {"labels": label}),
        ("process_sort_index", {"sort_index": order}),
    ):
        yield {"ph": "M", "name": key, "pid": pid, "tid": 0, "args": args}


def _thread(pid: int, tid: int, name: str, order: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
    yield {
        "ph": "M",
        "name": "thread_sort_index",
        "pid": pid,
        "tid": tid,
        "args": {"sort_index": order},
    }


# --- the host ----------------------------------------------------------------------------------------------


def queued() -> bool:
    """TASK_QUEUE_ENABLE=0 launches without a queue."""
    return os.environ.get("TASK_QUEUE_ENABLE", "1") != "0"


def _python(model: Model) -> Iterator[Event]:
    pid, threads = model.pid, {op.thread for op in model.ops}
    yield from _process(pid, "Python", "CPU", 0)
    for thread in sorted(threads):
        yield from _thread(pid, thread, f"Thread {thread}", thread)
    for thread in sorted({op.thread for op in model.ops if op.kind == "python"}):
        yield from _thread(pid, thread + PYTHON, f"Thread {thread} calls", thread)
    for op in model.ops:
        track = op.thread + PYTHON if op.kind == "python" else op.thread
        yield _span(op.name, pid, track, op.start, op.end, _CATEGORIES[op.kind], _args(op))
    yield from _forward_to_backward(model)
    if model.with_npu and queued():
        yield from _queue(model, threads)


def _args(op: Op) -> Event:
    if op.kind == "python":
        return {}
    args: Event = {"Sequence number": op.sequence, "Fwd thread id": op.forward_thread}
    if op.shapes is not None:
        args["Input Dims"] = dims(op.shapes)
        args["Input type"] = ";\r\n".join(op.dtypes or ())
    if op.stack is not None:
        args["Call stack"] = op.call_stack
    if op.flops:
        args["flops"] = op.flops
    return args


def _forward_to_backward(model: Model) -> Iterator[Event]:
    """From the last operator with a sequence number to the backward function that has it, on another thread."""
    forward: dict[int, Op] = {}
    backward: dict[int, Op] = {}
    for op in model.ops:
        if op.kind == "op" and op.sequence >= 0:
            side = backward if op.forward_thread else forward
            if op.sequence not in side or side[op.sequence].start < op.start:
                side[op.sequence] = op
    for sequence, end in backward.items():
        begin = forward.get(sequence)
        if begin is not None and begin.thread != end.thread and begin.start <= end.start:
            yield from _flow(
                "fwdbwd", sequence, "fwdbwd", (model.pid, begin.thread, begin.start), (model.pid, end.thread, end.start)
            )  # fmt: skip


def _queue(model: Model, threads: set[int]) -> Iterator[Event]:
    """Here the launching thread runs the task itself: it leaves the queue in the moment in which it enters."""
    pid = model.pid
    yield from _thread(pid, QUEUE, "Thread TaskQueue", max(threads, default=0) + 1)
    last = 0
    for task in model.tasks:
        args = {"correlation_id": task.correlation}
        api = "aclrtMemcpyAsync" if task.copy else f"aclnn{task.type}"
        yield _span(f"Enqueue@{api}", pid, task.thread, task.start, task.start, "enqueue", args)
        start = max(task.start, last)
        last = max(task.end, start)
        yield _span(f"Dequeue@{api}", pid, QUEUE, start, last, "dequeue", args)
        yield from _flow(
            "enqueue_to_dequeue", task.correlation, "async_task_queue", (pid, task.thread, task.start), (pid, QUEUE, start)
        )  # fmt: skip


def _collections(model: Model) -> Iterator[Event]:
    if not model.collections:
        return
    pid = _pid(model, _GC)
    yield from _process(pid, "Python GC", "CPU", _GC)
    for thread in sorted({thread for _, _, thread in model.collections}):
        yield from _thread(pid, thread, "Python GC", thread)
    for start, end, thread in model.collections:
        yield _span("GC", pid, thread, start, end, "GC", {})


def _marks(model: Model) -> Iterator[Event]:
    if not model.marks:
        return
    pid = _pid(model, _MARKS)
    yield from _process(pid, "Mstx", "CPU", _MARKS)
    lanes = _Lanes()
    for index, mark in enumerate(sorted(model.marks, key=lambda m: (m.start, -m.end))):
        lane = lanes.place(pid, mark.thread, mark.start, mark.end)
        kind = "range" if mark.end > mark.start else "marker"
        args = {"domain": mark.domain, "event_type": kind, "connection_id": index}
        yield _span(mark.message, pid, lane, mark.start, mark.end, "mstx", args)
        if mark.stream is not None and model.with_npu:
            device, stream = mark.stream
            hardware = _pid(model, _HARDWARE, device)
            there = lanes.place(hardware, QUEUE + stream, mark.start, mark.end)
            yield _span(mark.message, hardware, there, mark.start, mark.end, "mstx", args)
            yield from _flow(
                "MsTx", index, "MsTx", (pid, lane, mark.start), (hardware, there, mark.start)
            )
    for process, lane in lanes.open:
        thread = lane % QUEUE
        yield from _thread(
            process, lane, f"Thread {thread}" if process == pid else f"Stream {thread} mstx", lane
        )


class _Lanes:
    """Ranges of one thread may overlap without nesting: one that does gets a further track."""

    def __init__(self) -> None:
        self.open: dict[
            tuple[int, int], list[int]
        ] = {}  # (process, track): ends of the ranges that are open there

    def place(self, pid: int, thread: int, start: int, end: int) -> int:
        track = thread
        while True:
            ends = self.open.setdefault((pid, track), [])
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return track
            track += QUEUE


# --- the device --------------------------------------------------------------------------------------------


def _cann(model: Model) -> Iterator[Event]:
    pid = _pid(model, _CANN)
    yield from _process(pid, "CANN", "CPU", _CANN)
    for thread in sorted({task.thread for task in model.tasks}):
        yield from _thread(pid, thread, f"Thread {thread}", thread)
    last: dict[int, int] = {}
    for task in model.tasks:
        start = max(task.start, last.get(task.thread, 0))
        end = last[task.thread] = max(start, task.end)
        api = "aclrtMemcpyAsync" if task.copy else f"aclnn{task.type}"
        args = {
            "Thread Id": task.thread,
            "Mode": "ACL_OP",
            "level": "acl",
            "id": api,
            "connection_id": task.correlation,
        }
        yield _span(f"AscendCL@{api}", pid, task.thread, start, end, "cann", args)
        if not task.copy:
            node = args | {
                "Mode": "launch",
                "level": "node",
                "id": "launch",
                "item_id": task.kernel,
            }
            yield _span("Node@launch", pid, task.thread, start, end, "cann", node)
        yield from _flow(
            f"HostToDevice{task.correlation}", str(task.correlation), "HostToDevice", (pid, task.thread, start),
            (_pid(model, _HARDWARE, task.device), task.stream, task.start),
        )  # fmt: skip


def _hardware(model: Model) -> Iterator[Event]:
    marked = {mark.stream[0] for mark in model.marks if mark.stream is not None}
    for device in sorted(marked.union(model.devices)):
        pid = _pid(model, _HARDWARE, device)
        yield from _process(pid, "Ascend Hardware", f"NPU {device}", _HARDWARE)
        for stream in sorted({task.stream for task in model.tasks if task.device == device}):
            yield from _thread(pid, stream, f"Stream {stream}", stream)
    for task in model.tasks:
        pid = _pid(model, _HARDWARE, task.device)
        yield _span(task.kernel, pid, task.stream, task.start, task.end, "kernel", _task_args(task))
        if task.op is not None:
            begin = (model.pid, task.op.thread, task.op.start)
            yield from _flow(
                "torch_to_npu", task.correlation, "async_npu", begin, (pid, task.stream, task.start)
            )


def _task_args(task: Task) -> Event:
    return {
        "Model Id": _NO_MODEL, "Task Type": task.core, "Stream Id": task.stream, "Physic Stream Id": task.stream,
        "Task Id": task.number, "Batch Id": 0, "Subtask Id": _NO_MODEL, "connection_id": task.correlation,
    }  # fmt: skip


def _communication(model: Model) -> Iterator[Event]:
    tracks: dict[tuple[int, str], int] = {}
    for name, one in model.named_communications:
        pid = _pid(model, _HCCL, one.device)
        if (one.device, one.group) not in tracks:
            if not any(device == one.device for device, _ in tracks):
                yield from _process(pid, "Communication", f"NPU {one.device}", _HCCL)
            track = tracks[one.device, one.group] = 2 * len(tracks)
            yield from _thread(pid, track, f"Group {one.group} Communication", track)
            yield from _thread(pid, track + 1, "Plane 0", track + 1)
        track = tracks[one.device, one.group]
        args = {
            "connection_id": one.start_ns, "model id": _NO_MODEL, "data_type": one.dtype.upper(), "alg_type": "N/A",
            "count": one.count, "relay": "no", "retry": "no", "rank_size": len(one.ranks),
        }  # fmt: skip
        yield _span(name, pid, track, one.start_ns, one.end_ns, "hccl", args)
        task = {
            "notify_id": "N/A", "duration estimated(us)": "N/A", "stream id": one.stream, "task type": one.name,
            "src rank": one.rank, "dst rank": one.peer if one.peer >= 0 else _NO_MODEL, "transport type": "SDMA",
            "size(Byte)": one.size, "data type": one.dtype.upper(), "link type": "HCCS", "bandwidth(GB/s)": "N/A",
            "model id": _NO_MODEL,
        }  # fmt: skip
        yield _span("Memcpy", pid, track + 1, one.start_ns, one.end_ns, "hccl", task)


def _overlap(model: Model) -> Iterator[Event]:
    for device in model.devices:
        computing, communicating = model.computing(device), model.communicating(device)
        rows: tuple[tuple[str, Iterable[_intervals.Span]], ...] = (
            ("Computing", computing),
            ("Communication", communicating),
            ("Communication(Not Overlapped)", _intervals.subtract(communicating, computing)),
            ("Free", _intervals.gaps(_intervals.merge(computing + communicating))),
        )
        pid = _pid(model, _OVERLAP, device)
        yield from _process(pid, "Overlap Analysis", f"NPU {device}", _OVERLAP)
        for tid, (name, spans) in enumerate(rows):
            yield from _thread(pid, tid, name, tid)
            for start, end in spans:
                yield _span(name, pid, tid, start, end, "overlap", {"analysis type": name})


def _memory(model: Model) -> Iterator[Event]:
    told: set[int] = set()
    for usage in model.memory:
        pid = _pid(model, _MEMORY, usage.device)
        if usage.device not in told:
            told.add(usage.device)
            yield from _process(pid, "NPU MEM", f"NPU {usage.device}", _MEMORY)
        values = (
            ("Allocated", usage.allocated),
            ("Reserved", usage.reserved),
            ("Active", usage.active),
        )
        for name, size in values:
            yield {
                "ph": "C",
                "name": f"PTA {name}",
                "pid": pid,
                "tid": 0,
                "ts": us(usage.time),
                "args": {"KB": size / 1024},
            }
