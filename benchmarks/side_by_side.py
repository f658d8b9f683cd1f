"""An operator beside its formula: CPU eager and Inductor run the formula, a copy of the bytes moved is the limit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from benchmarks.harness import Case, Goal, Versus

INDUCTOR, COPY = Goal(1.0), Goal(2.0)
FLOATS = (torch.float32, torch.bfloat16)
Inputs = Callable[[torch.dtype], tuple[Any, ...]]


@dataclass(frozen=True)
class Kernel:
    """One operator: inputs for a dtype, the call, its formula as a user writes it, and how close both must be."""

    name: str
    inputs: Inputs
    call: Callable[..., Any]
    formula: Callable[..., Any]
    tolerance: float = 2e-2
    dtypes: tuple[torch.dtype, ...] = FLOATS
    bound: bool = True  # by memory, so that the goal of copying holds

    def cases(self, group: str) -> Iterator[Case]:
        for dtype in self.dtypes:
            yield _Sides(self, dtype).case(group)


class _Sides:
    """The tensors of both devices, which come into being when the case runs."""

    def __init__(self, kernel: Kernel, dtype: torch.dtype) -> None:
        self.kernel, self.dtype = kernel, dtype

    @functools.cached_property
    def host(self) -> tuple[Any, ...]:
        return self.kernel.inputs(self.dtype)

    @functools.cached_property
    def npu(self) -> tuple[Any, ...]:
        return tree_map_only(torch.Tensor, torch.Tensor.npu, self.host)

    @functools.cached_property
    def compiled(self) -> Callable[..., Any]:
        return torch.compile(self.kernel.formula, dynamic=False)

    @functools.cached_property
    def source(self) -> torch.Tensor:
        """Half of the bytes that the operator reads and writes."""
        moved = sum(t.nbytes for t in tensors((self.npu, self.subject())))
        return torch.zeros(moved // 2, dtype=torch.uint8, device="npu")

    def subject(self) -> Any:
        return self.kernel.call(*self.npu)

    def eager(self) -> Any:
        return self.kernel.formula(*self.host)

    def check(self) -> None:
        _ = self.npu  # before the formula writes over its inputs
        right = tensors(self.kernel.formula(*self.host))
        close = {"rtol": self.kernel.tolerance, "atol": self.kernel.tolerance}
        for got, want in zip(tensors(self.subject()), right, strict=True):
            torch.testing.assert_close(got.cpu().float(), want.float(), **close)

    def case(self, group: str) -> Case:
        copy = COPY if self.kernel.bound else None
        others = {
            "inductor": Versus(lambda: self.compiled(*self.host), INDUCTOR),
            "limit": Versus(lambda: self.source.clone(), copy, "copy of the bytes moved"),
        }
        name = f"{self.kernel.name}, {str(self.dtype).removeprefix('torch.')}"
        return Case(group, name, self.subject, self.eager, None, self.check, others=others)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(tree)[0] if isinstance(t, torch.Tensor)]
