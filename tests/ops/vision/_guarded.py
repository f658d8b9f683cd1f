"""Runs this folder's kernels on tensors that end, and begin, at pages that nobody may touch.

    python -m tests.ops.vision._guarded

A kernel that reads outside its tensors ends the process by a fault. Prints how many calls were made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

import torch_npu  # noqa: F401  (registers the operators)
from softnpu import settings
from tests.ops.support import make
from tests.ops.vision._pages import guarded
from torch_npu.ops._registry import operators


def host(*shape: int, **options: Any) -> torch.Tensor:
    return make(*shape, **{**options, "device": "cpu"})


def hostile(tensor: torch.Tensor, value: float) -> torch.Tensor:
    """The tensor with every third number replaced, as far as its dtype can hold it."""
    wrong = tensor.clone()
    if tensor.is_floating_point():
        wrong.view(-1)[::3] = value
    elif tensor.dtype == torch.int32 and value == value:
        wrong.view(-1)[::3] = int(max(min(value, 2**31 - 1), -(2**31)))
    return wrong


def run() -> int:
    """Every sample as it is and with wild numbers in each tensor, at both ends."""
    calls = 0
    vision = [o for o in operators.values() if o.folder == "vision"]
    for operator in vision:
        kernel = operator.as_function("kernel")
        for sample in operator.samples:
            args, kwargs = sample.inputs(host)
            values: list[float | None] = [None, float("nan"), 1e30, -7.0]
            for value in values:
                for at_end in (True, False):
                    given = tree_map_only(
                        torch.Tensor,
                        lambda t, v=value, e=at_end: guarded(t if v is None else hostile(t, v), e),
                        args,
                    )
                    kernel(*given, **kwargs)
                    calls += 1
    return calls


if __name__ == "__main__":
    with settings.override(strict=False):
        print(run())
