"""mstx: marks and ranges that a program puts into its profile.

Nobody listens, nothing is recorded: a call then costs a check and a number. A profiler listens with `subscribe`;
while torch's own profiler runs, ranges of one thread also appear there (not while torch_npu's profiler runs it).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from torch_npu.npu import _mstx as _calls

__all__ = ["annotate", "mstx"]


def _numbers(stream: torch.Stream) -> tuple[int, int, int]:
    return stream.stream_id, stream.device_index, stream.device_type


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


class mstx:
    """`torch.npu.mstx`: marks and ranges by name, on a stream too if one is given, in a domain."""

    @staticmethod
    def mark(message: str, stream: Any = None, domain: str = "default") -> None:
        """Marks this moment."""
        if not _valid("mark", message, stream, domain):
            return
        if stream is None:
            _calls._mark_on_host(message, domain)
        else:
            _calls._mark(message, *_numbers(stream), domain)

    @staticmethod
    def range_start(message: str, stream: Any = None, domain: str = "default") -> int:
        """Begins a range, which any thread may end; returns its id, 0 for wrong arguments."""
        if not _valid("range_start", message, stream, domain):
            return 0
        if stream is None:
            return _calls._range_start_on_host(message, domain)
        return _calls._range_start(message, *_numbers(stream), domain)

    @staticmethod
    def range_end(range_id: int, domain: str = "default") -> None:
        """Ends the range of that id and domain."""
        if isinstance(range_id, bool) or not isinstance(range_id, int):
            warnings.warn(
                "Invalid range_id for mstx.range_end: give what mstx.range_start returned.",
                stacklevel=2,
            )
        elif _valid("range_end", "-", None, domain):
            _calls._range_end(range_id, domain)

    @staticmethod
    def range_push(message: str, stream: Any = None, domain: str = "default") -> int:
        """Begins a range of this thread and returns its depth, from 0; -1 for wrong arguments."""
        if not _valid("range_push", message, stream, domain):
            return -1
        if stream is None:
            return _calls._range_push_on_host(message, domain)
        return _calls._range_push(message, *_numbers(stream), domain)

    @staticmethod
    def range_pop(domain: str = "default") -> int:
        """Ends this thread's innermost range and returns its depth; -1 if there is none."""
        return _calls._range_pop(domain) if _valid("range_pop", "-", None, domain) else -1

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
