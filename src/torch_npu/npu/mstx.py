"""mstx: marks and ranges that a program puts into its profile.

Nobody listens, nothing is recorded: a call then costs a check and a number. A profiler listens with `subscribe`;
while torch's own profiler runs, ranges of one thread also appear there (not while torch_npu's profiler runs it).
"""

from __future__ import annotations

import functools
import itertools
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from softnpu import _C

__all__ = ["annotate", "mstx"]


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


def _stream_key(stream: Any) -> tuple[int, int] | None:
    return None if stream is None else (stream.device_index, stream.stream_id)


def _valid(function: str, message: Any, stream: Any, domain: Any) -> bool:
    """As upstream: a wrong argument is a warning, never an error in the program that is measured."""
    wrong = None
    if not message or not isinstance(message, str):
        wrong = "message"
    elif not domain or not isinstance(domain, str):
        wrong = "domain"
    elif stream is not None and not isinstance(stream, torch.Stream):
        wrong = "stream"
    if wrong is not None:
        warnings.warn(f"Invalid {wrong} for mstx.{function} function.", stacklevel=3)
    return wrong is None


def _stack(domain: str) -> list[_Open | None]:
    if not hasattr(_stacks, "by_domain"):
        _stacks.by_domain = {}
    return _stacks.by_domain.setdefault(domain, [])


class mstx:
    """`torch.npu.mstx`: marks and ranges by name, on a stream too if one is given, in a domain."""

    @staticmethod
    def mark(message: str, stream: Any = None, domain: str = "default") -> None:
        """Marks this moment."""
        if not _valid("mark", message, stream, domain):
            return
        if _listeners:
            now = _C.device_clock_ns()
            _tell(message, domain, now, now, _stream_key(stream))
        if _profiling():
            with torch.autograd.profiler.record_function(message):
                pass

    @staticmethod
    def range_start(message: str, stream: Any = None, domain: str = "default") -> int:
        """Begins a range, which any thread may end; returns its id, 0 for wrong arguments."""
        if not _valid("range_start", message, stream, domain):
            return 0
        number = next(_ids)
        opened = _begin(message, _stream_key(stream))
        if opened is not None:
            _open[domain, number] = opened
        return number

    @staticmethod
    def range_end(range_id: int, domain: str = "default") -> None:
        """Ends the range of that id and domain."""
        if isinstance(range_id, bool) or not isinstance(range_id, int):
            warnings.warn(
                "Invalid range_id for mstx.range_end: give what mstx.range_start returned.",
                stacklevel=2,
            )
        elif _valid("range_end", "-", None, domain):
            _end(_open.pop((domain, range_id), None), domain)

    @staticmethod
    def range_push(message: str, stream: Any = None, domain: str = "default") -> int:
        """Begins a range of this thread and returns its depth, from 0; -1 for wrong arguments."""
        if not _valid("range_push", message, stream, domain):
            return -1
        stack = _stack(domain)
        stack.append(_begin(message, _stream_key(stream)))
        return len(stack) - 1

    @staticmethod
    def range_pop(domain: str = "default") -> int:
        """Ends this thread's innermost range and returns its depth; -1 if there is none."""
        if not _valid("range_pop", "-", None, domain):
            return -1
        stack = _stack(domain)
        if not stack:
            return -1
        _end(stack.pop(), domain)
        return len(stack)

    @staticmethod
    def mstx_range(message: str, stream: Any = None, domain: str = "default") -> Callable[..., Any]:
        """Decorator: every call of the function is a range."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            return annotate(message, stream, domain)(function)

        return decorate


class annotate:
    """A range as a `with` block, or as a decorator (named after the function by default)."""

    def __init__(self, message: str = "", stream: Any = None, domain: str = "default") -> None:
        self.message, self.stream, self.domain = message, stream, domain
        self.range_id: int | None = None

    def __enter__(self) -> annotate:
        self.range_id = mstx.range_start(self.message, self.stream, self.domain)
        return self

    def __exit__(self, *_: Any) -> None:
        if self.range_id is not None:
            mstx.range_end(self.range_id, self.domain)
            self.range_id = None

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        message = self.message or function.__name__

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            number = mstx.range_start(message, self.stream, self.domain)
            try:
                return function(*args, **kwargs)
            finally:
                mstx.range_end(number, self.domain)

        return wrapped


mstx.annotate = annotate  # type: ignore[attr-defined]
