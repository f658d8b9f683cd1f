"""What the profiler says, in the form of upstream's lines: time, level, process, file.

Profiling must never end the program that it measures: `tolerant` turns the errors of paths and values into such a line.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _say(level: str, text: str) -> None:
    stamp = time.strftime("[%Y-%m-%d %H:%M:%S]", time.localtime())
    print(f"{stamp} [{level}] [{os.getpid()}] profiler.py: {text}", flush=True)


def info(text: str) -> None:
    _say("INFO", text)


def warn(text: str) -> None:
    _say("WARNING", text)


def error(text: str) -> None:
    _say("ERROR", text)


def tolerant(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A failure is told, not raised; the call then returns None."""

    @functools.wraps(function)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except (OSError, RuntimeError, ValueError) as wrong:
            error(f"{function.__name__} failed: {wrong}")
            return cast(Any, None)

    return wrapped
