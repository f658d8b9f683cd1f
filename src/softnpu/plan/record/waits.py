"""Who waits for whom: events and streams of torch.npu, the host's waits, works of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softnpu.plan.record.log import Log, Place
from torch_npu._patch import Patches
from torch_npu.npu import _device, streams

_NUMBER = "_softnpu_plan_task"  # of an event: the last task before it


def follow(log: Log, patches: Patches, flush: Callable[[], None]) -> None:
    """Notes every wait in the log from now on. `flush` brings the log up to date first."""

    def record(event: Any, stream: Any = None) -> None:
        recorded(event, stream)
        flush()
        setattr(event, _NUMBER, log.last_of(_place(stream)))

    def wait(event: Any, stream: Any = None) -> None:
        awaited(event, stream)
        flush()
        log.wait(_place(stream), getattr(event, _NUMBER, None))

    def event_synchronize(event: Any) -> None:
        flush()
        log.host_waits(getattr(event, _NUMBER, None))
        event_synchronized(event)

    def stream_synchronize(stream: Any) -> None:
        flush()
        log.host_waits(log.last_of(_place(stream)))
        stream_synchronized(stream)

    def synchronize(device: Any = None) -> None:
        flush()
        log.host_waits_for_device(_device.memory_index(device))
        synchronized(device)

    recorded = patches.replace(streams.Event, "record", record)
    awaited = patches.replace(streams.Event, "wait", wait)
    event_synchronized = patches.replace(streams.Event, "synchronize", event_synchronize)
    stream_synchronized = patches.replace(streams._BaseStream, "synchronize", stream_synchronize)
    synchronized = patches.replace(torch.npu, "synchronize", synchronize)  # type: ignore[attr-defined]


def follow_works(waited: Callable[[Any], None], patches: Patches) -> None:
    """Calls `waited` with the results of each work of torch.distributed that Python waits for."""
    import torch.distributed as dist

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        result = done(work, *args, **kwargs)
        try:
            future = work.get_future()
        except RuntimeError:  # works of other backends than hccl need not have one
            return result
        if future.done():
            waited(future.value())
        return result

    done = patches.replace(dist.Work, "wait", wait)


def _place(stream: Any) -> Place:
    stream = streams.current_stream() if stream is None else stream
    return (stream.device_index, stream.stream_id)
