"""The machine's limits: how fast it copies and reads memory, and how fast its BLAS multiplies in fp32.

A copy is measured on the device, whose pool hands out pages that are mapped already, so that no page fault counts.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch

from benchmarks.harness import Goal, Versus

_SIDE = 1024  # of the square matrices


def copying(moved: int, goal: Goal | None = None) -> Versus:
    """The time of moving so many bytes: half of them read, half of them written."""

    @functools.cache
    def source() -> torch.Tensor:
        return torch.zeros(max(moved // 2, 1), dtype=torch.uint8, device="npu")

    return Versus(lambda: source().clone(), goal, f"copy of {moved / 2e6:.3g} MB")


def reading(tensors: Callable[[], Iterable[torch.Tensor]], **options: Any) -> Versus:
    """The time of reading the tensors' bytes once: a sum over them, taken as fp32 numbers."""

    @functools.cache
    def words() -> torch.Tensor:
        """Two halves make a word; its exponent is the second one's, so no sum meets an odd number."""
        flat = torch.cat([t.detach().cpu().flatten() for t in tensors()]).view(torch.uint8)
        return flat[: flat.numel() // 4 * 4].view(torch.float32)

    return Versus(lambda: words().sum(), **options)


def blas(flops: float, goal: Goal | None = None) -> Versus:
    """The time of so many operations in the fp32 BLAS: by a product of square matrices, times what is missing."""
    label = f"{flops / 1e9:.3g} GFLOP at the rate of an fp32 product of {_SIDE} cubed"
    return Versus(lambda: torch.matmul(*_squares()), goal, label, times=flops / (2 * _SIDE**3))


@functools.cache
def _squares() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)


def copy_rate() -> float:
    """Bytes copied a second, of 64 MiB."""
    source = torch.zeros(64 << 20, dtype=torch.uint8, device="npu")
    return source.nbytes / _median(source.clone)


def blas_rate() -> float:
    """Floating-point operations a second, of square fp32 matrices."""
    return 2 * _SIDE**3 / _median(lambda: torch.matmul(*_squares()))


def _median(run: Callable[[], Any], rounds: int = 7) -> float:
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
