"""Checks of sizes and permutations that the operators share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from torch_npu.ops import _check as must


def check_permutation(name: str, perm: Sequence[int], count: int, negative: bool = False) -> None:
    """Each dimension stands in `perm` once; `negative` ones may count from the end."""
    seen = [p % count if negative and -count <= p < count else p for p in perm]
    must.hold(
        sorted(seen) == list(range(count)), name, f"a permutation of {count} dimensions", list(perm)
    )


def check_sizes(name: str, sizes: Sequence[int], count: int) -> None:
    """The sizes are not negative and hold `count` elements."""
    fits = all(s >= 0 for s in sizes) and math.prod(sizes) == count
    must.hold(fits, name, f"sizes whose product is {count}", list(sizes))


def dense(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy that shares nothing with `x`."""
    return x.clone(memory_format=torch.contiguous_format)
