"""The device's side of the timeline: CANN, streams, communication, overlap analysis, memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch_npu.profiler import _intervals
from torch_npu.profiler._model import Model, Task
from torch_npu.profiler.writers._csv import us
from torch_npu.profiler.writers._timeline import (
    CANN,
    HARDWARE,
    HCCL,
    MEMORY,
    NO_MODEL,
    OVERLAP,
    QUEUE,
    Event,
    Tracks,
    flow,
    name_process,
    name_thread,
    process_id,
    span,
)


def cann(model: Model) -> Iterator[Event]:
    pid = process_id(model, CANN)
    yield from name_process(pid, "CANN", "CPU", CANN)
    for thread in sorted({task.thread for task in model.tasks}):
        yield from name_thread(pid, thread, f"Thread {thread}", thread)
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
        yield span(f"AscendCL@{api}", pid, task.thread, start, end, "cann", args)
        if not task.copy:
            node = args | {
                "Mode": "launch",
                "level": "node",
                "id": "launch",
                "item_id": task.kernel,
            }
            yield span("Node@launch", pid, task.thread, start, end, "cann", node)
        yield from flow(
            f"HostToDevice{task.correlation}", str(task.correlation), "HostToDevice", (pid, task.thread, start),
            (process_id(model, HARDWARE, task.device), task.stream, task.start),
        )  # fmt: skip


def hardware(model: Model) -> Iterator[Event]:
    marked = {mark.stream[0] for mark in model.marks if mark.stream is not None}
    for device in sorted(marked.union(model.devices)):
        pid = process_id(model, HARDWARE, device)
        yield from name_process(pid, "Ascend Hardware", f"NPU {device}", HARDWARE)
        for stream in sorted({task.stream for task in model.tasks if task.device == device}):
            yield from name_thread(pid, stream, f"Stream {stream}", stream)
    for task in model.tasks:
        pid = process_id(model, HARDWARE, task.device)
        yield span(task.kernel, pid, task.stream, task.start, task.end, "kernel", _task_args(task))
        if task.op is not None:
            begin = (model.pid, task.op.thread, task.op.start)
            yield from flow(
                "torch_to_npu", task.correlation, "async_npu", begin, (pid, task.stream, task.start)
            )


def _task_args(task: Task) -> Event:
    return {
        "Model Id": NO_MODEL, "Task Type": task.core, "Stream Id": task.stream, "Physic Stream Id": task.stream,
        "Task Id": task.number, "Batch Id": 0, "Subtask Id": NO_MODEL, "connection_id": task.correlation,
    }  # fmt: skip


def communication(model: Model) -> Iterator[Event]:
    """A pair of tracks for each group: operations, and what they move. Those in flight together get further tracks."""
    tracks: dict[tuple[int, str], int] = {}
    placed = Tracks()
    for name, one in model.named_communications:
        pid = process_id(model, HCCL, one.device)
        if (one.device, one.group) not in tracks:
            if not any(device == one.device for device, _ in tracks):
                yield from name_process(pid, "Communication", f"NPU {one.device}", HCCL)
            tracks[one.device, one.group] = 2 * len(tracks)
        track = placed.place(pid, tracks[one.device, one.group], one.start_ns, one.end_ns)
        args = {
            "connection_id": one.start_ns, "model id": NO_MODEL, "data_type": one.dtype.upper(), "alg_type": "N/A",
            "count": one.count, "relay": "no", "retry": "no", "rank_size": len(one.ranks),
        }  # fmt: skip
        yield span(name, pid, track, one.start_ns, one.end_ns, "hccl", args)
        task = {
            "notify_id": "N/A", "duration estimated(us)": "N/A", "stream id": one.stream, "task type": one.name,
            "src rank": one.rank, "dst rank": one.peer if one.peer >= 0 else NO_MODEL, "transport type": "SDMA",
            "size(Byte)": one.size, "data type": one.dtype.upper(), "link type": "HCCS", "bandwidth(GB/s)": "N/A",
            "model id": NO_MODEL,
        }  # fmt: skip
        yield span("Memcpy", pid, track + 1, one.start_ns, one.end_ns, "hccl", task)
    groups = {track: group for (_, group), track in tracks.items()}
    for pid, track in placed.open:
        order = track % QUEUE
        yield from name_thread(pid, track, f"Group {groups[order]} Communication", order)
        yield from name_thread(pid, track + 1, "Plane 0", order + 1)


def overlap(model: Model) -> Iterator[Event]:
    for device in model.devices:
        computing, communicating = model.computing(device), model.communicating(device)
        rows: tuple[tuple[str, Iterable[_intervals.Span]], ...] = (
            ("Computing", computing),
            ("Communication", communicating),
            ("Communication(Not Overlapped)", _intervals.subtract(communicating, computing)),
            ("Free", _intervals.gaps(_intervals.merge(computing + communicating))),
        )
        pid = process_id(model, OVERLAP, device)
        yield from name_process(pid, "Overlap Analysis", f"NPU {device}", OVERLAP)
        for tid, (name, spans) in enumerate(rows):
            yield from name_thread(pid, tid, name, tid)
            for start, end in spans:
                yield span(name, pid, tid, start, end, "overlap", {"analysis type": name})


def memory(model: Model) -> Iterator[Event]:
    told: set[int] = set()
    for usage in model.memory:
        pid = process_id(model, MEMORY, usage.device)
        if usage.device not in told:
            told.add(usage.device)
            yield from name_process(pid, "NPU MEM", f"NPU {usage.device}", MEMORY)
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
