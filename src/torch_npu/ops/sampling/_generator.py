"""The numbers of an operator that takes a generator."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import kernel_generator

#: what a call takes off a generator that was passed, as upstream's philox counters do
_TAKEN = 10
_WORD = 2**64


def numbers(generator: torch.Generator | None) -> torch.Generator | None:
    """Inside a kernel: a CPU generator drawn from the one passed, which it advances, or from the device's.

    It has the numbers that PyTorch's own operators draw from a generator in this state (csrc/torch/runtime/generator.cpp).
    """
    if generator is None:
        return kernel_generator()
    seed, offset = generator.initial_seed() % _WORD, generator.get_offset()
    generator.set_offset(offset + _TAKEN)
    return torch.Generator().manual_seed(_signed(_mix(seed ^ _mix(offset))))


def _mix(value: int) -> int:
    """splitmix64."""
    value = (value + 0x9E3779B97F4A7C15) % _WORD
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % _WORD
    return value ^ (value >> 31)


def _signed(word: int) -> int:
    """The word as `manual_seed` takes it."""
    return word - _WORD if word >= _WORD // 2 else word
