"""acl.rt's callbacks: functions at a place in a stream, which a thread of the program runs when it asks for them.

A thread is known by the number that `acl.util.start_thread` or `threading.get_ident` gives. A function that blocks
keeps its stream waiting for it, as an event does that is recorded later.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from acl import _codes, _device
from acl._codes import (
    RT_CONTEXT_NULL,
    RT_PARAM_INVALID,
    RT_REPORT_TIMEOUT,
    RT_STREAM_NO_CALLBACK,
    RT_STREAM_SUBSCRIBE,
    RT_THREAD_SUBSCRIBE,
    SUCCESS,
)
from acl._device import runtime

_NO_BLOCK, _BLOCK = 0, 1


def subscribe_report(thread_id: int, stream: int) -> int:
    """Lets the thread run the callbacks of the stream."""
    _codes.integers("acl.rt.subscribe_report", thread_id=thread_id, stream=stream)
    key = _key(stream)
    if isinstance(key, int):
        return key
    if key in runtime.subscribers:
        return RT_STREAM_SUBSCRIBE
    for thread in threading.enumerate():
        if thread.ident == thread_id:
            _records(thread)
    runtime.subscribers[key] = thread_id
    runtime.reports.setdefault(thread_id, queue.SimpleQueue())
    return SUCCESS


def unsubscribe_report(thread_id: int, stream: int) -> int:
    """Ends `subscribe_report`; what was launched before still waits for the thread."""
    _codes.integers("acl.rt.unsubscribe_report", thread_id=thread_id, stream=stream)
    key = _key(stream)
    if isinstance(key, int):
        return key
    if runtime.subscribers.get(key) != thread_id:
        return RT_STREAM_SUBSCRIBE
    del runtime.subscribers[key]
    return SUCCESS


def launch_callback(fn: Callable[[Any], Any], user_data: Any, block_type: int, stream: int) -> int:
    """Has the subscribed thread call `fn(user_data)` after the work that was launched on the stream before.

    Args:
        block_type: 1, and later work of the stream waits until the function has returned; 0, and it does not.
    """
    _codes.integers("acl.rt.launch_callback", block_type=block_type, stream=stream)
    if not callable(fn):
        raise TypeError(
            f"acl.rt.launch_callback: fn must be callable, received {type(fn).__name__}"
        )
    key = _key(stream)
    if isinstance(key, int):
        return key
    if block_type not in (_NO_BLOCK, _BLOCK):
        return RT_PARAM_INVALID
    if key not in runtime.subscribers:
        return RT_STREAM_NO_CALLBACK
    import torch

    reports = runtime.reports[runtime.subscribers[key]]
    found = _device.stream(stream)
    returned = torch.npu.ExternalEvent() if block_type == _BLOCK else None
    _device.module().host_function(*key, lambda: reports.put((fn, user_data, returned, key[0])))
    if returned is not None:
        returned.wait(found)
    return SUCCESS


def process_report(timeout: int) -> int:
    """Runs one callback on this thread; waits up to `timeout` milliseconds for it, -1 is for ever."""
    _codes.integers("acl.rt.process_report", timeout=timeout)
    if timeout < -1 or timeout == 0:
        return RT_PARAM_INVALID
    reports = runtime.reports.get(threading.get_ident())
    if reports is None:
        return RT_THREAD_SUBSCRIBE
    _records(threading.current_thread())
    try:
        fn, user_data, returned, device = reports.get(
            timeout=None if timeout < 0 else timeout / 1000
        )
    except queue.Empty:
        return RT_REPORT_TIMEOUT
    try:
        fn(user_data)
    finally:
        if returned is not None:
            import torch

            with torch.npu.device(device):
                returned.record(torch.npu.Stream())  # not in the order of this thread's stream
    return SUCCESS


def start_thread(fn: Callable[[Any], Any], args: Any) -> tuple[int, int]:
    """(number, code) of a thread that runs `fn(args)`."""
    if not callable(fn):
        raise TypeError(f"acl.util.start_thread: fn must be callable, received {type(fn).__name__}")
    made = threading.Thread(target=fn, args=(args,), daemon=True)
    made.start()
    assert made.ident is not None
    runtime.threads[made.ident] = made
    return made.ident, SUCCESS


def stop_thread(thread_id: int) -> int:
    """Waits for the end of a thread that `start_thread` made."""
    _codes.integers("acl.util.stop_thread", thread_id=thread_id)
    found = runtime.threads.pop(thread_id, None)
    if found is None:
        return RT_PARAM_INVALID
    found.join()
    runtime.reports.pop(thread_id, None)
    return SUCCESS


def _records(thread: threading.Thread) -> None:
    """A wait for a callback's end is none that can never end while this thread lives, a daemon or not."""
    thread.npu_records_events = True  # type: ignore[attr-defined]


def _key(handle: int) -> tuple[int, int] | int:
    """(device, stream) of a handle, or the code that says why there is none."""
    if not _device.has_context():
        return RT_CONTEXT_NULL
    found = _device.stream(handle)
    return RT_PARAM_INVALID if found is None else (found.device_index, found.stream_id)
