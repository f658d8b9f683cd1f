"""Optimisers over 4M parameters: the operators beside their formulas, the fused classes beside PyTorch's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

import torch_npu
from benchmarks import formulas, limits
from benchmarks.harness import Case, Versus
from benchmarks.kernels import ROWS, WIDTH, matrix
from benchmarks.side_by_side import COPY, INDUCTOR, Kernel

GROUP = "optimisers"
PIECES = 16  # parameters of a model


def state(dtype: torch.dtype) -> tuple[Any, ...]:
    return matrix(dtype), matrix(dtype) / 10, matrix(dtype).abs(), matrix(dtype)


def adam(var: torch.Tensor, m: torch.Tensor, v: torch.Tensor, grad: torch.Tensor) -> Any:
    numbers = (0.9, 0.99, 1e-3, 0.9, 0.99, 1e-6)
    return torch_npu.npu_apply_adam(*numbers, grad, False, False, out=(var, m, v))


def adam_w(var: torch.Tensor, m: torch.Tensor, v: torch.Tensor, grad: torch.Tensor) -> Any:
    numbers = (0.9, 0.99, 1e-3, 1e-2, 0.9, 0.99, 1e-6)
    return torch_npu.npu_apply_adam_w(*numbers, grad, None, False, False, out=(var, m, v))


KERNELS = [
    Kernel("npu_apply_adam", state, adam, formulas.adam),
    Kernel("npu_apply_adam_w", state, adam_w, formulas.adam_w),
]

#: our class, PyTorch's, options of both, and tensors a step reads or writes beside the parameters and gradients
CLASSES: list[tuple[str, str | None, dict[str, Any], int]] = [
    ("NpuFusedAdam", "Adam", {}, 4),
    ("NpuFusedAdamW", "AdamW", {}, 4),
    ("NpuFusedSGD", "SGD", {"lr": 0.1, "momentum": 0.9}, 2),
    ("NpuFusedRMSprop", "RMSprop", {}, 2),
    ("NpuFusedAdadelta", "Adadelta", {}, 4),
    ("NpuFusedLamb", None, {}, 4),
    ("NpuFusedAdamP", None, {}, 4),
    ("NpuFusedBertAdam", None, {"lr": 1e-3}, 4),
]


def cases() -> Iterator[Case]:
    for kernel in KERNELS:
        yield from kernel.cases(GROUP)
    for ours, theirs, options, states in CLASSES:
        yield fused(ours, theirs, options, states)


def _parameters(device: str) -> list[torch.Tensor]:
    made = [torch.randn(ROWS // PIECES, WIDTH, device=device) for _ in range(PIECES)]
    for p in made:
        p.requires_grad_()
        p.grad = torch.ones_like(p)
    return made


def fused(ours: str, theirs: str | None, options: dict[str, Any], states: int) -> Case:
    """A step over 16 fp32 parameters; PyTorch's class runs as it is and compiled."""

    @functools.cache
    def subject() -> Callable[[], Any]:
        return getattr(torch_npu.optim, ours)(_parameters("npu"), **options).step

    @functools.cache
    def eager() -> Callable[[], Any]:
        assert theirs is not None
        return getattr(torch.optim, theirs)(_parameters("cpu"), **options).step

    @functools.cache
    def compiled() -> Callable[[], Any]:
        assert theirs is not None
        return torch.compile(getattr(torch.optim, theirs)(_parameters("cpu"), **options).step)

    moved = 4 * ROWS * WIDTH * (3 + states)  # parameters twice, gradients once, and the state
    others = {"limit": limits.copying(moved, COPY)}
    if theirs is not None:
        others["inductor"] = Versus(lambda: compiled()(), INDUCTOR)
    baseline = None if theirs is None else lambda: eager()()
    return Case(GROUP, f"{ours}, float32", lambda: subject()(), baseline, others=others)
