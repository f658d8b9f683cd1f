"""Calls in turn instead of at random: every argument of every sample of our operators, spoiled in each of a few ways.

The ways are those in which a kernel leaves its tensors: indices from data, sizes, numbers. Chance seldom meets the one
argument of an operator that is an index, with the one value that is out of range.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch

from tests.fuzz import kinds, targets
from tests.fuzz.calls import Call
from tests.fuzz.mutations import Mutation, places

KINDS = ("index", "number", "shape", "kind")
#: a value, and for all elements (0) or for one (1)
_INDICES = [(how, n) for how in ("minus one", "most", "least", "large", "random") for n in (0, 1)]
_NUMBERS = (0, -1, -7, 2**31 - 1, 2**31, 2**40, 2**62 - 1, -(2**62))
_SIZES = ("zero", "shrink", "one", "grow")
_DTYPES = ("int8", "float64", "bool", "complex64")


def calls(kind: str, names: list[str], seed: int) -> list[Call]:
    """All of them, in an order of the seed: the first thousands are a sample."""
    found: list[Call] = []
    for name in names:
        if not name.startswith("npu.") or (kind != "index" and targets.heavy(name)):
            continue
        for sample in range(targets.named(name).samples):
            for where, value in places(targets.on_host(name, sample)):
                if "." not in where:
                    continue
                for strict, *chosen in _ways(kind, where, value):
                    found.append(Call(name, sample, 0, tuple(chosen), strict=strict))
    random.Random(seed).shuffle(found)
    return found


def _ways(kind: str, where: str, value: Any) -> Iterator[tuple[Any, ...]]:
    if kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        for number in _NUMBERS:
            for strict in (0, 1):
                yield strict, Mutation(where, "value", number)
    if not isinstance(value, torch.Tensor):
        return
    if kind == "index" and value.dtype in (torch.int32, torch.int64):
        other = Mutation(where, "dtype", "int64" if value.dtype == torch.int32 else "int32")
        for way in _INDICES:
            changed = Mutation(where, "values", way)
            yield 0, changed
            yield 1, changed
            yield 0, other, changed
    if kind == "shape":
        for dim in range(max(value.dim(), 1)):
            for how in _SIZES:
                yield 0, Mutation(where, "shape", (how, dim))
        yield 0, Mutation(where, "none")
        yield 0, Mutation(where, "stride", ("overlapping", 0))
        yield 0, Mutation(where, "stride", ("reversed dims", 0))
        for dtype in _DTYPES:
            yield 0, Mutation(where, "dtype", dtype)
    if kind == "kind":
        for strict, odd in itertools.product((0, 1), kinds.KINDS):
            yield strict, Mutation(where, "kind", odd)
