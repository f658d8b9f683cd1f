"""Optimizers over 4M parameters: the operators beside their formulas, the fused classes beside PyTorch's own."""

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

GROUP = "optimizers"
PIECES = 16  # parameters of a model


def state(dtype: torch.dtype) -> tuple[Any, ...]:
    return matrix(dtype), matrix(dtype) / 10, matrix(dtype).abs(), matrix(dtype)


def adam(var: torch.Tensor, m: torch.Tensor, v: torch.Tensor, grad: torch.Tensor) -> Any:
    rates = (formulas.RATE, formulas.BETA1, formulas.BETA2, formulas.EPSILON)
    numbers = (formulas.BETA1, formulas.BETA2, *rates)
    return torch_npu.npu_apply_adam(*numbers, grad, False, False, out=(var, m, v))


def adam_w(var: torch.Tensor, m: torch.Tensor, v: torch.Tensor, grad: torch.Tensor) -> Any:
    rates = (formulas.RATE, formulas.DECAY, formulas.BETA1, formulas.BETA2, formulas.EPSILON)
    numbers = (formulas.BETA1, formulas.BETA2, *rates)
    return torch_npu.npu_apply_adam_w(*numbers, grad, None, False, False, out=(var, m, v))


KERNELS = [
    Kernel("npu_apply_adam", state, adam, formulas.adam),
    Kernel("npu_apply_adam_w", state, adam_w, formulas.adam_w),
]

#: our class, PyTorch's, options of both, and the formula of their update, if Inductor is to compile it
CLASSES: list[tuple[str, str | None, dict[str, Any], Callable[..., Any] | None]] = [
    ("NpuFusedAdam", "Adam", {}, formulas.adam),
    ("NpuFusedAdamW", "AdamW", {}, formulas.adam_w),
    ("NpuFusedSGD", "SGD", {"lr": 0.1, "momentum": 0.9}, formulas.sgd),
    ("NpuFusedRMSprop", "RMSprop", {}, formulas.rmsprop),
    ("NpuFusedAdadelta", "Adadelta", {}, formulas.adadelta),
    ("NpuFusedLamb", None, {}, None),
    ("NpuFusedAdamP", None, {}, None),
    ("NpuFusedBertAdam", None, {"lr": 1e-3}, None),
]


def cases() -> Iterator[Case]:
    for kernel in KERNELS:
        yield from kernel.cases(GROUP)
    for ours, theirs, options, formula in CLASSES:
        yield fused(ours, theirs, options, formula)


def _stepper(kind: Any, device: str, options: dict[str, Any]) -> Callable[[], Any]:
    """The step of an optimizer over 16 parameters."""
    made = [torch.randn(ROWS // PIECES, WIDTH, device=device) for _ in range(PIECES)]
    for p in made:
        p.requires_grad_()
        p.grad = torch.ones_like(p)
    return kind(made, **options).step


def fused(
    ours: str, theirs: str | None, options: dict[str, Any], formula: Callable[..., Any] | None
) -> Case:
    """A step over 16 fp32 parameters; PyTorch's class as it is, and the update as one formula, compiled."""
    state = 2 if formula is None else formula.__code__.co_argcount - 2  # but for var and grad
    moved = 4 * ROWS * WIDTH * (3 + 2 * state)  # parameters and state twice, gradients once
    others = {"limit": limits.copying(moved, COPY)}
    baseline = None
    mine = functools.cache(lambda: _stepper(getattr(torch_npu.optim, ours), "npu", options))
    if theirs is not None and formula is not None:
        eager = functools.cache(lambda: _stepper(getattr(torch.optim, theirs), "cpu", options))
        flat = functools.cache(lambda: [torch.rand(ROWS, WIDTH) for _ in range(2 + state)])
        compiled = torch.compile(formula, dynamic=False)
        baseline = lambda: eager()()  # noqa: E731
        label = "the update of one tensor"
        others["inductor"] = Versus(lambda: compiled(*flat()), INDUCTOR, label)
    return Case(GROUP, f"{ours}, float32", lambda: mine()(), baseline, others=others)
