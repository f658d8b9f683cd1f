"""The calls behind `mstx`, by the names of upstream's module `torch_npu._C._mstx`: what they record, and who listens."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from softnpu import _C


@dataclass(frozen=True)
class Record:
    """A mark (start == end) or a finished range, in nanoseconds of the device's clock."""

    message: str
    domain: str
    start_ns: int
    end_ns: int
    stream: tuple[int, int] | None  # (device, stream) if it was put on a stream too
    thread: int


@dataclass
class _Open:
    message: str
    stream: tuple[int, int] | None
    start_ns: int
    function: Any


Listener = Callable[[Record], None]
_listeners: list[Listener] = []
_ids = itertools.count(1)
_open: dict[tuple[str, int], _Open] = {}
_stacks = threading.local()


def subscribe(listener: Listener) -> None:
    """Calls `listener` with every mark, and with every range when it ends."""
    _listeners.append(listener)


def unsubscribe(listener: Listener) -> None:
    _listeners.remove(listener)


def _profiling() -> bool:
    return torch.autograd._profiler_enabled()


def _begin(message: str, stream: tuple[int, int] | None) -> _Open | None:
    """A range that began, or None if nobody will ask for it."""
    if not _listeners and not _profiling():
        return None
    function = None
    if _profiling():
        function = torch.autograd.profiler.record_function(message)
        function.__enter__()
    return _Open(message, stream, _C.device_clock_ns(), function)


def _end(opened: _Open | None, domain: str) -> None:
    if opened is None:
        return
    if opened.function is not None:
        opened.function.__exit__(None, None, None)
    _tell(opened.message, domain, opened.start_ns, _C.device_clock_ns(), opened.stream)


def _tell(message: str, domain: str, start: int, end: int, stream: tuple[int, int] | None) -> None:
    record = Record(message, domain, start, end, stream, threading.get_native_id())
    for listener in list(_listeners):
        listener(record)


def _stack(domain: str) -> list[_Open | None]:
    if not hasattr(_stacks, "by_domain"):
        _stacks.by_domain = {}
    return _stacks.by_domain.setdefault(domain, [])


def _mark_on_host(message: str, domain: str) -> None:
    _record_mark(message, domain, None)


def _mark(message: str, stream: int, device: int, _device_type: int, domain: str) -> None:
    _record_mark(message, domain, (device, stream))


def _record_mark(message: str, domain: str, stream: tuple[int, int] | None) -> None:
    if _listeners:
        now = _C.device_clock_ns()
        _tell(message, domain, now, now, stream)
    if _profiling():
        with torch.autograd.profiler.record_function(message):
            pass


def _range_start_on_host(message: str, domain: str) -> int:
    return _started(message, domain, None)


def _range_start(message: str, stream: int, device: int, _device_type: int, domain: str) -> int:
    return _started(message, domain, (device, stream))


def _started(message: str, domain: str, stream: tuple[int, int] | None) -> int:
    number = next(_ids)
    opened = _begin(message, stream)
    if opened is not None:
        _open[domain, number] = opened
    return number


def _range_end(range_id: int, domain: str) -> None:
    _end(_open.pop((domain, range_id), None), domain)


def _range_push_on_host(message: str, domain: str) -> int:
    return _pushed(message, domain, None)


def _range_push(message: str, stream: int, device: int, _device_type: int, domain: str) -> int:
    return _pushed(message, domain, (device, stream))


def _pushed(message: str, domain: str, stream: tuple[int, int] | None) -> int:
    stack = _stack(domain)
    stack.append(_begin(message, stream))
    return len(stack) - 1


def _range_pop(domain: str) -> int:
    stack = _stack(domain)
    if not stack:
        return -1
    _end(stack.pop(), domain)
    return len(stack)
