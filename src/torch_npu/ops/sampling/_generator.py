"""The numbers of an operator that takes a generator."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import kernel_generator

#: what a call takes off a generator that was passed, as upstream's philox counters do
_TAKEN = 4
_MIX = 0x9E3779B97F4A7C15


def numbers(generator: torch.Generator | None) -> torch.Generator | None:
    """Inside a kernel: a CPU generator drawn from the one passed, which it advances, or from the device's."""
    if generator is None:
        return kernel_generator()
    seed, offset = generator.initial_seed(), generator.get_offset()
    generator.set_offset(offset + _TAKEN)
    return torch.Generator().manual_seed((seed ^ ((offset + 1) * _MIX)) % 2**63)
