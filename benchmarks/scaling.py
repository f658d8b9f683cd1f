"""Two threads beside one, on what computes more than it moves."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import torch_npu
from benchmarks.harness import Case, Goal, Versus

TWICE = Goal(1 / 1.7)


def cases() -> Iterator[Case]:
    if (os.cpu_count() or 1) < 2:
        return
    for name, make, body in _bodies():
        yield scaled(name, make, body)


def _matrices(dtype: torch.dtype) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: tuple(torch.randn(1024, 1024).to("npu", dtype) for _ in range(2))


def _heads() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(2, 8, 512, 64).to("npu", torch.bfloat16) for _ in range(3))


def _images() -> tuple[torch.Tensor, ...]:
    return torch.randn(8, 64, 56, 56).npu(), torch.randn(64, 64, 3, 3).npu()


def _halves() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2048, 2048).to("npu", torch.bfloat16),)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    return torch_npu.npu_fusion_attention(q, k, v, 8, "BNSD", scale=0.125)[0]


def _bodies() -> Iterator[tuple[str, Callable[[], tuple[torch.Tensor, ...]], Callable[..., Any]]]:
    yield "matmul 1024, float32", _matrices(torch.float32), torch.matmul
    yield "matmul 1024, bfloat16", _matrices(torch.bfloat16), torch.matmul
    yield "npu_fusion_attention, bfloat16", _heads, _attention
    yield "conv2d, float32", _images, functools.partial(F.conv2d, padding=1)
    yield "npu_gelu 4M, bfloat16", _halves, torch_npu.npu_gelu


def scaled(
    name: str, make: Callable[[], tuple[torch.Tensor, ...]], body: Callable[..., Any]
) -> Case:
    inputs, usual = functools.cache(make), torch.get_num_threads()
    host = functools.cache(lambda: tuple(t.cpu() for t in inputs()))

    def run(threads: int, given: Callable[[], tuple[torch.Tensor, ...]]) -> None:
        torch.set_num_threads(threads)
        try:
            body(*given())
        finally:
            torch.set_num_threads(usual)

    two, one = (functools.partial(run, n, inputs) for n in (2, 1))
    others = {}
    if "npu" not in name and "float32" in name:
        others["cpu, two threads"] = Versus(functools.partial(run, 2, host))
    return Case("two threads", name, two, one, TWICE, against="one thread", others=others)
