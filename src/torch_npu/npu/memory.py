"""Device memory: what is allocated, reserved and cached. Names and keys are those of torch.cuda.memory."""

from __future__ import annotations

import collections
import warnings
from typing import Any

from softnpu import _C
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu import _alloc_conf
from torch_npu.npu._device import is_initialized, memory_index
from torch_npu.npu._memory_history import (
    _dump_snapshot,
    _record_memory_history,
    _record_memory_history_impl,
    _save_memory_usage,
    _save_segment_usage,
    _snapshot,
    memory_snapshot,
)
from torch_npu.npu._memory_pool import (
    MemPool,
    NPUPluggableAllocator,
    _get_current_allocator,
    _NPUAllocator,
    change_current_allocator,
    get_allocator_backend,
    not_with_plugin,
    use_mem_pool,
)
from torch_npu.npu._memory_summary import memory_summary as _summary

__all__ = [
    "MemPool",
    "NPUPluggableAllocator",
    "_NPUAllocator",
    "_dump_snapshot",
    "_get_current_allocator",
    "_record_memory_history",
    "_record_memory_history_impl",
    "_save_memory_usage",
    "_save_segment_usage",
    "_set_allocator_settings",
    "_snapshot",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "change_current_allocator",
    "empty_cache",
    "empty_virt_addr_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]


def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
    """Allocates bytes for another library and returns their address; `caching_allocator_delete` frees them."""
    _C.ensure_started()
    index = memory_index(device)
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**63:
        raise TypeError(f"size must be a number of bytes, but received {size!r}")
    if stream is None:
        stream = _C.current_stream(index)
    elif hasattr(stream, "stream_id"):
        stream = stream.stream_id
    elif isinstance(stream, bool) or not isinstance(stream, int) or not -1 <= stream < 2**31:
        raise TypeError(
            "Invalid type for stream argument, must be `torch_npu.npu.Stream` or `int` representing "
            "a pointer to an existing stream" + pta_error(ErrCode.TYPE)
        )
    else:
        stream = max(stream - 1, 0)  # a handle is the number plus one
    return _C.raw_alloc(index, size, stream)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Frees what `caching_allocator_alloc` returned."""
    if isinstance(mem_ptr, bool) or not isinstance(mem_ptr, int) or not 0 <= mem_ptr < 2**64:
        raise TypeError(f"mem_ptr must be an address, but received {mem_ptr!r}")
    _C.raw_free(mem_ptr)


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limits this process to a share of the device's memory; more is an out-of-memory error."""
    index = memory_index(device)
    if not isinstance(fraction, float):
        raise TypeError(
            "Invalid type for fraction argument, must be `float`" + pta_error(ErrCode.TYPE)
        )
    if not 0 <= fraction <= 1:
        raise ValueError(
            f"Invalid fraction value: {fraction}. Allowed range: 0~1" + pta_error(ErrCode.VALUE)
        )
    _C.set_memory_fraction(index, fraction)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The share that `set_per_process_memory_fraction` allows, 1.0 at first."""
    index = memory_index(device)
    not_with_plugin("getMemoryFraction")
    return _C.memory_fraction(index)


def empty_cache() -> None:
    """Gives unused cached memory back."""
    if is_initialized():
        not_with_plugin("emptyCache")
        _C.empty_cache()


def empty_virt_addr_cache() -> None:
    """Gives the address ranges of unused expandable segments back; needs expandable_segments:True."""
    if not is_initialized():
        return
    not_with_plugin("emptyVirtAddrCache")
    if not _alloc_conf.current.get("expandable_segments"):
        raise RuntimeError(
            "empty_virt_addr_cache needs PYTORCH_NPU_ALLOC_CONF=expandable_segments:True"
            + pta_error(ErrCode.NOT_SUPPORT)
        )
    _C.empty_cache()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the device."""
    _C.ensure_started()
    return _C.memory_info(memory_index(device))


# --- statistics -----------------------------------------------------------------------------------------


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    flat: list[tuple[str, Any]] = []

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat.append((prefix, value))

    walk("", nested)
    return collections.OrderedDict(sorted(flat))


def memory_stats(device: Any = None) -> dict[str, Any]:
    """The allocator's statistics as a flat dictionary, with CUDA's keys."""
    return _flat(memory_stats_as_nested_dict(device))


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The allocator's statistics; empty before the device is first used."""
    index = memory_index(device)
    if not is_initialized():
        return {}
    not_with_plugin("getDeviceStats")
    return _C.memory_stats(index)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Sets `allocated`, `freed` and the counters of the statistics to 0."""
    index = memory_index(device)
    not_with_plugin("resetAccumulatedStats")
    _C.reset_accumulated(index)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Sets every `peak` of the statistics to its `current`."""
    index = memory_index(device)
    not_with_plugin("resetPeakStats")
    _C.reset_peak(index)


def reset_max_memory_allocated(device: Any = None) -> None:
    """The old name of `reset_peak_memory_stats`."""
    warnings.warn(
        "torch_npu.npu.reset_max_memory_allocated now calls torch_npu.npu.reset_peak_memory_stats, "
        "which resets /all/ peak memory stats.",
        FutureWarning,
        stacklevel=2,
    )
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Any = None) -> None:
    """The old name of `reset_peak_memory_stats`."""
    warnings.warn(
        "torch_npu.npu.reset_max_memory_cached now calls torch_npu.npu.reset_peak_memory_stats, "
        "which resets /all/ peak memory stats.",
        FutureWarning,
        stacklevel=2,
    )
    reset_peak_memory_stats(device)


def _stat(device: Any, group: str, kind: str) -> int:
    stats = memory_stats_as_nested_dict(device)
    return stats[group]["all"][kind] if stats else 0


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors occupy now, rounded to blocks of 512."""
    return _stat(device, "allocated_bytes", "current")


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors occupied since the start or the last reset."""
    return _stat(device, "allocated_bytes", "peak")


def memory_reserved(device: Any = None) -> int:
    """Bytes that the allocator holds, used and cached."""
    return _stat(device, "reserved_bytes", "current")


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that the allocator held since the start or the last reset."""
    return _stat(device, "reserved_bytes", "peak")


def memory_cached(device: Any = None) -> int:
    """The old name of `memory_reserved`."""
    warnings.warn(
        "torch_npu.npu.memory_cached has been renamed to torch_npu.npu.memory_reserved",
        FutureWarning,
        stacklevel=2,
    )
    return memory_reserved(device)


def max_memory_cached(device: Any = None) -> int:
    """The old name of `max_memory_reserved`."""
    warnings.warn(
        "torch_npu.npu.max_memory_cached has been renamed to torch_npu.npu.max_memory_reserved",
        FutureWarning,
        stacklevel=2,
    )
    return max_memory_reserved(device)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The statistics as a table to print; `abbreviated` leaves out the pools."""
    return _summary(memory_index(device), memory_stats(device), abbreviated)


# --- pinned host memory -----------------------------------------------------------------------------------


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Statistics of pinned host memory."""
    return _C.host_memory_stats()


def host_memory_stats() -> dict[str, Any]:
    """Statistics of pinned host memory as a flat dictionary, with CUDA's keys."""
    return _flat(host_memory_stats_as_nested_dict())


def host_empty_cache() -> None:
    """Gives unused pinned host memory back."""
    _C.host_empty_cache()


def reset_accumulated_host_memory_stats() -> None:
    """Sets the accumulated statistics of pinned host memory to 0."""
    _C.host_reset_accumulated()


def reset_peak_host_memory_stats() -> None:
    """Sets every `peak` of pinned host memory to its `current`."""
    _C.host_reset_peak()


#: the settings that upstream lets a program change while the allocator runs
_CHANGEABLE = {
    "expandable_segments",
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "release_lock_on_npumalloc",
    "throw_on_npumalloc_oom",
    "per_process_memory_fraction",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
}


def _set_allocator_settings(settings: str) -> None:
    """Changes settings of `PYTORCH_NPU_ALLOC_CONF` while the allocator runs: `key:value,key:value`."""
    if not isinstance(settings, str):
        raise TypeError(f"settings must be a str, but received {type(settings).__name__}")
    found = _alloc_conf.parse(settings)
    for key in found:
        if key not in _CHANGEABLE:
            raise ValueError(
                f"torch_npu.npu.memory._set_allocator_settings() unsupported setting: {key}"
                + pta_error(ErrCode.VALUE)
            )
    _alloc_conf.update(found)
