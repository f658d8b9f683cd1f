"""Device memory: what is allocated, reserved and cached."""

from __future__ import annotations

import collections
from typing import Any

from softnpu import _C
from torch_npu.npu.device import checked_index


def memory_stats(device: Any = None) -> dict[str, Any]:
    """The allocator's statistics as a flat dictionary, with CUDA's keys."""
    flat: list[tuple[str, Any]] = []

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat.append((prefix, value))

    walk("", memory_stats_as_nested_dict(device))
    return collections.OrderedDict(sorted(flat))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    return _C.memory_stats(checked_index(device))


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors occupy now, rounded to blocks of 512."""
    return memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["current"]


def max_memory_allocated(device: Any = None) -> int:
    return memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"]


def memory_reserved(device: Any = None) -> int:
    """Bytes that the allocator holds, used and cached."""
    return memory_stats_as_nested_dict(device)["reserved_bytes"]["all"]["current"]


def max_memory_reserved(device: Any = None) -> int:
    return memory_stats_as_nested_dict(device)["reserved_bytes"]["all"]["peak"]


def reset_peak_memory_stats(device: Any = None) -> None:
    _C.reset_peak(checked_index(device))


def empty_cache() -> None:
    """Gives unused cached memory back."""
    _C.empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the device."""
    return _C.memory_info(checked_index(device))


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limits this process to a share of the device's memory."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.set_memory_fraction(checked_index(device), fraction)
