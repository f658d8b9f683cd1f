"""The sanitizer: programs that are wrong and found, and for each the nearest one that is right and silent."""

from __future__ import annotations

from collections.abc import Callable

import torch

from softnpu import sanitizer
from softnpu.findings import Finding


def found_in(program: Callable[[], object], *, poison: bool = False) -> list[Finding]:
    """What the sanitizer finds in a program; the device is idle before and after."""
    torch.npu.synchronize()
    with sanitizer.record(poison=poison) as found:
        program()
    torch.npu.synchronize()
    return found


def streams(count: int = 2) -> list[torch.npu.Stream]:
    return [torch.npu.Stream() for _ in range(count)]


def ready(*shape: int, **options: object) -> torch.Tensor:
    """A tensor that every stream may use: the host has waited for it."""
    made = torch.ones(*(shape or (256,)), device="npu", **options)
    torch.npu.synchronize()
    return made
