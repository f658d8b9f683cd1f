"""acl.rt: devices, contexts, streams, events and memory; each function returns CANN's code, last in a tuple."""

from __future__ import annotations

from typing import Any

from acl import _codes, _device
from acl._callbacks import launch_callback, process_report, subscribe_report, unsubscribe_report
from acl._codes import (
    RT_CONTEXT_NULL,
    RT_EVENT_TIMESTAMP_INVALID,
    RT_INVALID_DEVICEID,
    RT_PARAM_INVALID,
    SUCCESS,
)  # fmt: skip
from acl._device import runtime
from acl._memory import (
    free,
    free_host,
    get_mem_info,
    host_register,
    host_unregister,
    malloc,
    malloc_cached,
    malloc_host,
    memcpy,
    memcpy_async,
    memset,
    memset_async,
)

__all__ = [
    "create_context", "create_event", "create_event_with_flag", "create_stream", "create_stream_with_config",
    "destroy_context", "destroy_event", "destroy_stream", "device_can_access_peer", "event_elapsed_time", "free",
    "free_host", "get_context", "get_device", "get_device_count", "get_device_utilization_rate", "get_mem_info",
    "get_run_mode", "get_version", "host_register", "host_unregister", "launch_callback", "malloc", "malloc_cached",
    "malloc_host", "memcpy", "memcpy_async", "memset", "memset_async", "process_report", "query_event_status",
    "record_event", "reset_device", "set_context", "set_device", "stream_query", "stream_wait_event",
    "subscribe_report", "synchronize_device", "synchronize_event", "synchronize_stream",
    "synchronize_stream_with_timeout", "unsubscribe_report",
]  # fmt: skip

_ACL_HOST = 1  # the program runs on the host, not on the card's own processor
_COMPLETE, _NOT_READY = 0, 1


def get_version() -> tuple[int, int, int, int]:
    """(major, minor, patch, code) of the runtime's API."""
    return 1, 0, 0, SUCCESS


# --- devices ------------------------------------------------------------------------------------------------------


def get_device_count() -> tuple[int, int]:
    return _device.count(), SUCCESS


def set_device(device_id: int) -> int:
    """Makes a device current on this thread."""
    _codes.integers("acl.rt.set_device", device_id=device_id)
    if not 0 <= device_id < _device.count():
        return RT_INVALID_DEVICEID
    import torch

    torch.npu.set_device(device_id)
    runtime.local.context = ("device", device_id)
    return SUCCESS


def reset_device(device_id: int) -> int:
    """Gives a device back: its streams, events and memory made here are freed."""
    _codes.integers("acl.rt.reset_device", device_id=device_id)
    if not 0 <= device_id < _device.count():
        return RT_INVALID_DEVICEID
    for address in [a for a, (_, device) in runtime.memory.items() if device == device_id]:
        free(address)
    for table in (runtime.streams, runtime.events):
        for handle in [h for h, one in table.items() if one.device.index == device_id]:
            del table[handle]
    if (current := getattr(runtime.local, "context", None)) and current[1] == device_id:
        runtime.local.context = None
    return SUCCESS


def get_device() -> tuple[int, int]:
    """(device, code): the one that is current on this thread."""
    if not _device.has_context():
        return 0, RT_CONTEXT_NULL
    return _device.module().current_device(), SUCCESS


def get_device_utilization_rate(device_id: int) -> tuple[dict[str, int], int]:
    """(percentages, code). The cores of all devices are this host's, so theirs is one number; -1 is what it cannot say."""
    _codes.integers("acl.rt.get_device_utilization_rate", device_id=device_id)
    if not 0 <= device_id < _device.count():
        return {}, RT_INVALID_DEVICEID
    import torch

    busy = torch.npu.utilization(device_id)
    free, total = torch.npu.mem_get_info(device_id)
    found = {"cube_utilization": busy, "vector_utilization": busy, "aicpu_utilization": -1}
    found |= {"memory_utilization": 100 * (total - free) // total, "utilization_extend": 0}
    return found, SUCCESS


def get_run_mode() -> tuple[int, int]:
    return _ACL_HOST, SUCCESS


def synchronize_device() -> int:
    """Waits for all work of the current device."""
    if not _device.has_context():
        return RT_CONTEXT_NULL
    import torch

    torch.npu.synchronize()
    return SUCCESS


def device_can_access_peer(device_id: int, peer_device_id: int) -> tuple[int, int]:
    """(1 or 0, code): whether one device reaches the other's memory."""
    _codes.integers(
        "acl.rt.device_can_access_peer", device_id=device_id, peer_device_id=peer_device_id
    )
    count = _device.count()
    if not (0 <= device_id < count and 0 <= peer_device_id < count):
        return 0, RT_INVALID_DEVICEID
    return int(device_id != peer_device_id), SUCCESS


# --- contexts -----------------------------------------------------------------------------------------------------


def create_context(device_id: int) -> tuple[int, int]:
    """(handle, code); the context is current on this thread."""
    _codes.integers("acl.rt.create_context", device_id=device_id)
    code = set_device(device_id)
    if code != SUCCESS:
        return 0, code
    handle = next(runtime.handles)
    runtime.contexts[handle] = device_id
    runtime.local.context = (handle, device_id)
    return handle, SUCCESS


def destroy_context(context: int) -> int:
    _codes.integers("acl.rt.destroy_context", context=context)
    if runtime.contexts.pop(context, None) is None:
        return RT_CONTEXT_NULL
    if (current := getattr(runtime.local, "context", None)) and current[0] == context:
        runtime.local.context = None
    return SUCCESS


def set_context(context: int) -> int:
    """Makes a context, and its device, current on this thread."""
    _codes.integers("acl.rt.set_context", context=context)
    if context not in runtime.contexts:
        return RT_CONTEXT_NULL
    code = set_device(runtime.contexts[context])
    runtime.local.context = (context, runtime.contexts[context])
    return code


def get_context() -> tuple[int, int]:
    """(handle, code) of the current context; set_device makes one for its device."""
    current = getattr(runtime.local, "context", None)
    if current is None:
        return 0, RT_CONTEXT_NULL
    name, device = current
    if name == "device":
        name = next(runtime.handles)
        runtime.contexts[name] = device
        runtime.local.context = (name, device)
    return name, SUCCESS


# --- streams ------------------------------------------------------------------------------------------------------


def create_stream() -> tuple[int, int]:
    return create_stream_with_config(0, 0)


def create_stream_with_config(priority: int, flag: int) -> tuple[int, int]:
    """(handle, code). `flag` asks for the card's launch modes, which are one here."""
    _codes.integers("acl.rt.create_stream_with_config", priority=priority, flag=flag)
    if not 0 <= priority <= 7 or flag < 0:
        return 0, RT_PARAM_INVALID
    if not _device.has_context():
        return 0, RT_CONTEXT_NULL
    import torch

    handle = next(runtime.handles)
    runtime.streams[handle] = torch.npu.Stream()
    return handle, SUCCESS


def destroy_stream(stream: int) -> int:
    _codes.integers("acl.rt.destroy_stream", stream=stream)
    found = runtime.streams.pop(stream, None)
    if found is None:
        return RT_PARAM_INVALID
    found.synchronize()
    return SUCCESS


def synchronize_stream(stream: int) -> int:
    """Waits for the stream's work; 0 is the default stream, and torch.npu's handles are taken too."""
    return synchronize_stream_with_timeout(stream, -1)


def synchronize_stream_with_timeout(stream: int, timeout: int) -> int:
    """Waits for the stream's work. Work runs at launch, so there is no wait that a timeout could end."""
    _codes.integers("acl.rt.synchronize_stream", stream=stream, timeout=timeout)
    found = _stream(stream)
    if isinstance(found, int):
        return found
    if timeout < -1:
        return RT_PARAM_INVALID
    found.synchronize()
    return SUCCESS


def stream_query(stream: int) -> tuple[int, int]:
    """(0 if the stream's work is done, else 1, code)."""
    _codes.integers("acl.rt.stream_query", stream=stream)
    found = _stream(stream)
    if isinstance(found, int):
        return _NOT_READY, found
    return (_COMPLETE if found.query() else _NOT_READY), SUCCESS


def stream_wait_event(stream: int, event: int) -> int:
    """Later work of the stream waits for the event."""
    _codes.integers("acl.rt.stream_wait_event", stream=stream, event=event)
    found = _stream(stream)
    if isinstance(found, int):
        return found
    if event not in runtime.events:
        return RT_PARAM_INVALID
    found.wait_event(runtime.events[event])
    return SUCCESS


def _stream(handle: int) -> Any:
    if not _device.has_context():
        return RT_CONTEXT_NULL
    found = _device.stream(handle)
    return RT_PARAM_INVALID if found is None else found


# --- events -------------------------------------------------------------------------------------------------------


def create_event() -> tuple[int, int]:
    return create_event_with_flag(1)


def create_event_with_flag(flag: int) -> tuple[int, int]:
    """(handle, code); bit 1 (ACL_EVENT_TIME_LINE is 8, ACL_EVENT_SYNC 1) of `flag` is for timing."""
    _codes.integers("acl.rt.create_event_with_flag", flag=flag)
    if flag <= 0:
        return 0, RT_PARAM_INVALID
    if not _device.has_context():
        return 0, RT_CONTEXT_NULL
    import torch

    handle = next(runtime.handles)
    runtime.events[handle] = torch.npu.Event(enable_timing=True)
    return handle, SUCCESS


def destroy_event(event: int) -> int:
    _codes.integers("acl.rt.destroy_event", event=event)
    return RT_PARAM_INVALID if runtime.events.pop(event, None) is None else SUCCESS


def record_event(event: int, stream: int) -> int:
    _codes.integers("acl.rt.record_event", event=event, stream=stream)
    found = _stream(stream)
    if isinstance(found, int):
        return found
    if event not in runtime.events:
        return RT_PARAM_INVALID
    runtime.events[event].record(found)
    return SUCCESS


def synchronize_event(event: int) -> int:
    _codes.integers("acl.rt.synchronize_event", event=event)
    if event not in runtime.events:
        return RT_PARAM_INVALID
    runtime.events[event].synchronize()
    return SUCCESS


def query_event_status(event: int) -> tuple[int, int]:
    """(1 if the event is recorded and done, else 0, code)."""
    _codes.integers("acl.rt.query_event_status", event=event)
    if event not in runtime.events:
        return 0, RT_PARAM_INVALID
    return int(runtime.events[event].query()), SUCCESS


def event_elapsed_time(start: int, end: int) -> tuple[float, int]:
    """(milliseconds, code) between two recorded events."""
    _codes.integers("acl.rt.event_elapsed_time", start=start, end=end)
    if start not in runtime.events or end not in runtime.events:
        return 0.0, RT_PARAM_INVALID
    try:
        return runtime.events[start].elapsed_time(runtime.events[end]), SUCCESS
    except (RuntimeError, ValueError) as error:  # one of them was never recorded
        runtime.local.error = str(error)
        return 0.0, RT_EVENT_TIMESTAMP_INVALID
