"""Tests of several devices and processes."""

from __future__ import annotations

import functools
import os
import unittest
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

TestSkip = namedtuple("TestSkip", "exit_code, message")
TestSkip.__test__ = False  # type: ignore[attr-defined]
TEST_SKIPS = {
    "multi-npu": TestSkip(75, "Multi-NPU condition not satisfied"),
    **{f"multi-npu-{n}": TestSkip(75, f"Need at least {n} ASCEND devices") for n in range(1, 9)},
    "hccl": TestSkip(76, "c10d not compiled with HCCL support"),
    "known_issues": TestSkip(77, "Test skipped due to known issues"),
}


def skipIfUnsupportMultiNPU(npu_number_needed: int) -> Callable[..., Any]:
    """Skips a test where there are fewer devices."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.npu.device_count() < npu_number_needed:
                raise unittest.SkipTest(f"Multi-NPU {npu_number_needed} condition not satisfied")
            return function(self, *args, **kwargs)

        return run

    return decorate


def init_pg(
    backend: str = "hccl", world_size: int = 1, rank: int = 0, file_name: str = "file://"
) -> None:
    """Starts the process group over a file, and makes the rank's device current for hccl."""
    if backend not in ("hccl", "gloo"):
        raise RuntimeError(f"Backend {backend} not supported!")
    if backend == "hccl" and torch.npu.device_count() < world_size:
        raise RuntimeError(TEST_SKIPS[f"multi-npu-{world_size}"].message)
    dist.init_process_group(
        backend=backend, world_size=world_size, rank=rank, init_method=f"file://{file_name}"
    )
    if backend == "hccl":
        torch.npu.set_device(rank)


def with_comms(func: Callable[..., Any]) -> Callable[..., Any]:
    """A method that runs inside a process group of `self.world_size`, destroyed after it."""
    if func is None:
        raise RuntimeError("Test function is None.")

    @functools.wraps(func)
    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        backend = "hccl" if torch.npu.device_count() >= self.world_size else "gloo"
        init_pg(backend, self.world_size, self.rank, self.file_name)
        torch.npu.manual_seed(0)
        func(self, *args, **kwargs)
        self.destroy_pg()

    return run


@contextmanager
def _dynamo_dist_per_rank_init(rank: int, world_size: int, init_pg_: bool = True) -> Iterator[None]:
    """One rank of a compiled distributed test: its device, its group, a fresh dynamo."""
    torch.npu.set_device(rank)
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "6789")
    if init_pg_:
        dist.init_process_group(backend="hccl", rank=rank, world_size=world_size)
    torch._dynamo.reset()
    try:
        yield
    finally:
        torch._dynamo.reset()
        if init_pg_:
            dist.destroy_process_group()
