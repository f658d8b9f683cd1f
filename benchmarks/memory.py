"""The caching allocator: a pair of calls, and a million live blocks."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.harness import Case, Goal, Versus
from softnpu import _C

PAIR_SECONDS = 0.5e-6
#: quadratic cost would make a hundred times the blocks a hundred times as slow, each
EACH = Goal(3.0)
FEW, MANY, BYTES = 10_000, 1_000_000, 512


def cases() -> Iterator[Case]:
    yield pair()
    yield Case(
        "memory", "torch.empty of 4 KiB, made and dropped", lambda: torch.empty(1024, device="npu"),
        lambda: torch.empty(1024),
    )  # fmt: skip
    yield Case(
        "memory", f"a block of {MANY:,} live ones", functools.partial(_each, MANY),
        functools.partial(_each, FEW), EACH, against=f"of {FEW:,}", reads=True, once=True,
    )  # fmt: skip


def pair() -> Case:
    """alloc and free of a cached block, less what two calls from Python cost."""

    def subject() -> float:
        # a call that does nothing else with an integer, and returns a number
        call = functools.partial(_C.memory_fraction, 0)
        rounds = [_seconds(_alloc_free, 2000) - 2 * _seconds(call, 2000) for _ in range(5)]
        return max(statistics.median(rounds), 1e-9)

    limit = Versus(PAIR_SECONDS, Goal(1.0), "0.5 us")
    return Case("memory", "alloc and free, cached", subject, others={"limit": limit}, reads=True)


def _alloc_free() -> None:
    _C.raw_free(_C.raw_alloc(0, 4096, 0))


def _seconds(function: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def _each(count: int) -> float:
    """Seconds a block: all are made, then freed, every second one first, so that free blocks lie apart."""
    start = time.perf_counter()
    blocks = [_C.raw_alloc(0, BYTES, 0) for _ in range(count)]
    for address in blocks[::2] + blocks[1::2]:
        _C.raw_free(address)
    return (time.perf_counter() - start) / count
