"""Half-precision products: against the fp32 BLAS, against reading the weight once, and their workspace.

The CPU device is so slow in bf16 that it multiplies a sixteenth of the rows or columns, times 16.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks import limits
from benchmarks.harness import Case, Goal, Versus

GROUP = "half-precision GEMM"
RATE = Goal(1 / 0.75)  # at least 0.75 of the fp32 rate
READ = Goal(1.2)
WORKSPACE = 16 * 2**20
PART = 16
DTYPES = (torch.bfloat16, torch.float16)


def cases() -> Iterator[Case]:
    for dtype in DTYPES:
        yield product(dtype, 1024, 1024, 1024, False)
        yield product(dtype, 1024, 1024, 1024, True)
    yield product(torch.bfloat16, 2048, 2048, 2048, True)
    yield product(torch.bfloat16, 512, 4096, 4096, True)
    for rows in (1, 4, 8):
        yield skinny(rows)
    yield workspace()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def product(dtype: torch.dtype, m: int, k: int, n: int, linear: bool) -> Case:
    """A matmul, or a linear layer whose weight lies transposed, beside the same in fp32 on the CPU device."""
    body = F.linear if linear else torch.matmul

    @functools.cache
    def host() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(m, k).to(dtype), torch.randn(*((n, k) if linear else (k, n))).to(dtype)

    mine = functools.cache(lambda: [t.npu() for t in host()])
    wide = functools.cache(lambda: [t.float() for t in host()])

    def few() -> torch.Tensor:
        a, b = host()
        return body(a[: m // PART], b)

    def check() -> None:
        """Rounded once: within one step of the type from the exact result of the rounded inputs."""
        exact = body(*(t.double() for t in host()))
        step = torch.finfo(dtype).eps * exact.abs().max().item()
        assert (body(*mine()).cpu().double() - exact).abs().max().item() <= step, "inexact"

    slow = Versus(few, label=_name(dtype), times=PART)
    others = {"limit": Versus(lambda: body(*wide()), RATE, "fp32 BLAS, same product")}
    name = f"{'linear' if linear else 'matmul'} {m}x{k}x{n}, {_name(dtype)}"
    return Case(GROUP, name, lambda: body(*mine()), slow, None, check, others=others)


def skinny(rows: int) -> Case:
    """Decoding: a few rows by a weight of 90 MB in bf16, which must be read once."""
    out, depth = 11008, 4096

    @functools.cache
    def host() -> tuple[torch.Tensor, torch.Tensor]:
        x, w = torch.randn(rows, depth), torch.randn(out, depth) / depth**0.5
        return x.bfloat16(), w.bfloat16()

    mine = functools.cache(lambda: [t.npu() for t in host()])

    def part() -> torch.Tensor:
        x, w = host()
        return F.linear(x, w[: out // PART])

    def check() -> None:
        exact = F.linear(*(t.float() for t in host()))
        torch.testing.assert_close(F.linear(*mine()).cpu().float(), exact, atol=2e-2, rtol=2e-2)

    slow = Versus(part, label="bf16", times=PART)
    read = limits.reading(lambda: host()[1:], goal=READ, label="reading the weight")
    name = f"linear {rows}x{depth}x{out}, bfloat16"
    others = {"limit": read, "fp32 BLAS": limits.blas(2 * rows * depth * out)}
    return Case(GROUP, name, lambda: F.linear(*mine()), slow, None, check, others=others)


def workspace() -> Case:
    """Memory beyond inputs and result, of the device or of the process, with a weight of 90 MB."""

    def used() -> float:
        x = torch.randn(512, 4096, dtype=torch.bfloat16, device="npu")
        w = torch.randn(11008, 4096, dtype=torch.bfloat16, device="npu")
        F.linear(x.float(), w[:512].float())  # the BLAS sets itself up
        torch.npu.empty_cache()
        start, resident = torch.npu.memory_allocated(), _resident(reset=True)
        torch.npu.reset_peak_memory_stats()
        y = F.linear(x, w)
        device = torch.npu.max_memory_allocated() - start
        process = _resident() - resident
        return max(device, process) - y.nbytes

    limit = Versus(float(WORKSPACE), Goal(1.0), "16 MiB")
    name = "workspace of linear 512x4096x11008, bfloat16"
    return Case(GROUP, name, used, others={"limit": limit}, unit="B", reads=True, once=True)


def _resident(reset: bool = False) -> int:
    """The most bytes of the process that were in memory, since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
