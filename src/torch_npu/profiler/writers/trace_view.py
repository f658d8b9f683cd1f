"""trace_view.json: the timeline, for MindStudio Insight, Perfetto and chrome://tracing.

Processes from top to bottom: Python with a track for each thread and for the task queue, the garbage collector, marks, CANN
(from Level1 on), the device with a track for each stream, its memory, communication, overlap analysis.

Differs from upstream: a task leaves the queue in the moment in which it enters it, and CANN's spans are the tasks'
own; a span may be some hundred nanoseconds short where its neighbor is as near, so that Perfetto drops none.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

from torch_npu.profiler._model import Model, Op
from torch_npu.profiler.writers import _timeline_device as device
from torch_npu.profiler.writers._timeline import (
    GC,
    HARDWARE,
    MARKS,
    QUEUE,
    Event,
    Tracks,
    fit,
    flow,
    name_process,
    name_thread,
    process_id,
    span,
)
from torch_npu.profiler.writers.operator_details import dims

NAME = "trace_view.json"

_CATEGORIES = {"op": "cpu_op", "user": "cpu_op", "python": "python_function"}
PYTHON = 500_000_000  # added to a thread's id for the track of its Python calls


def write(model: Model, out: Path) -> None:
    export(model, out / NAME)


def export(model: Model, path: Path) -> None:
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    with open(path, "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o640)) as file:
        before, source = "[", iter(fit(events(model)))
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
            yield from device.cann(model)
        yield from device.hardware(model)
        yield from device.communication(model)
        yield from device.overlap(model)
    yield from device.memory(model)


# --- the host ----------------------------------------------------------------------------------------------


def queued() -> bool:
    """TASK_QUEUE_ENABLE=0 launches without a queue."""
    return os.environ.get("TASK_QUEUE_ENABLE", "1") != "0"


def _python(model: Model) -> Iterator[Event]:
    pid, threads = model.pid, {op.thread for op in model.ops}
    if model.with_npu and queued():
        threads |= {task.thread for task in model.tasks}
    yield from name_process(pid, "Python", "CPU", 0)
    for thread in sorted(threads):
        yield from name_thread(pid, thread, f"Thread {thread}", thread)
    for thread in sorted({op.thread for op in model.ops if op.kind == "python"}):
        yield from name_thread(pid, thread + PYTHON, f"Thread {thread} calls", thread)
    for op in model.ops:
        track = op.thread + PYTHON if op.kind == "python" else op.thread
        yield span(op.name, pid, track, op.start, op.end, _CATEGORIES[op.kind], _args(op))
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
            yield from flow(
                "fwdbwd", sequence, "fwdbwd", (model.pid, begin.thread, begin.start), (model.pid, end.thread, end.start)
            )  # fmt: skip


def _queue(model: Model, threads: set[int]) -> Iterator[Event]:
    """Here the launching thread runs the task itself: it leaves the queue in the moment in which it enters."""
    pid = model.pid
    yield from name_thread(pid, QUEUE, "Thread TaskQueue", max(threads, default=0) + 1)
    last = 0
    for task in model.tasks:
        args = {"correlation_id": task.correlation}
        api = "aclrtMemcpyAsync" if task.copy else f"aclnn{task.type}"
        yield span(f"Enqueue@{api}", pid, task.thread, task.start, task.start, "enqueue", args)
        start = max(task.start, last)
        last = max(task.end, start)
        yield span(f"Dequeue@{api}", pid, QUEUE, start, last, "dequeue", args)
        yield from flow(
            "enqueue_to_dequeue", task.correlation, "async_task_queue", (pid, task.thread, task.start), (pid, QUEUE, start)
        )  # fmt: skip


def _collections(model: Model) -> Iterator[Event]:
    if not model.collections:
        return
    pid = process_id(model, GC)
    yield from name_process(pid, "Python GC", "CPU", GC)
    for thread in sorted({thread for _, _, thread in model.collections}):
        yield from name_thread(pid, thread, "Python GC", thread)
    for start, end, thread in model.collections:
        yield span("GC", pid, thread, start, end, "GC", {})


def _marks(model: Model) -> Iterator[Event]:
    if not model.marks:
        return
    pid = process_id(model, MARKS)
    yield from name_process(pid, "Mstx", "CPU", MARKS)
    placed = Tracks()
    for index, mark in enumerate(sorted(model.marks, key=lambda m: (m.start, -m.end))):
        track = placed.place(pid, mark.thread, mark.start, mark.end)
        kind = "range" if mark.end > mark.start else "marker"
        args = {"domain": mark.domain, "event_type": kind, "connection_id": index}
        yield span(mark.message, pid, track, mark.start, mark.end, "mstx", args)
        if mark.stream is not None and model.with_npu:
            owner, stream = mark.stream
            hardware = process_id(model, HARDWARE, owner)
            there = placed.place(hardware, QUEUE + stream, mark.start, mark.end)
            yield span(mark.message, hardware, there, mark.start, mark.end, "mstx", args)
            yield from flow(
                "MsTx", index, "MsTx", (pid, track, mark.start), (hardware, there, mark.start)
            )
    for process, track in placed.open:
        thread = track % QUEUE
        yield from name_thread(
            process, track, f"Thread {thread}" if process == pid else f"Stream {thread} mstx", track
        )
