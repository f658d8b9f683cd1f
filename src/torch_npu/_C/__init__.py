"""torch_npu._C: upstream's private extension module, as far as public projects call it.

Each name is a Python function over the device's own module (softnpu._C) or over torch.npu.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from softnpu import _C as _device_module
from torch_npu._C import _npurt
from torch_npu.npu import (
    _device,
    _memory_history,
    _memory_pool,
    _mstx,
    _options,
    _overflow,
    _recovery,
    memory,
    utils,
)
from torch_npu.npu import autocast_utils as _autocast
from torch_npu.npu import npu_config as _config

__all__ = ["_mstx", "_npurt"]

# --- options ----------------------------------------------------------------------------------------------------


def _npu_setOption(options: dict[str, str]) -> None:
    """Sets options by name, without the checks of torch.npu.set_option on values."""
    if not isinstance(options, dict):
        raise TypeError(f"options must be a dict, but received {type(options).__name__}")
    _options.set_all(options)


def _npu_getOption(option_type: str) -> bytes | None:
    """The value of an option as bytes; None if it is not set."""
    if not isinstance(option_type, str):
        raise RuntimeError("invalid argument to option_type,option_type must string!")
    value = _options.get(option_type)
    return None if value is None else value.encode()


_npu_is_jit_compile_false = _config.is_jit_compile_false

# --- device -----------------------------------------------------------------------------------------------------

_npu_init = _device.init
_npu_synchronize = _device.synchronize
_npu_setDevice = _device.set_device
_npu_getDevice = _device.current_device
_npu_getDeviceCount = _device.device_count
_npu_getDeviceProperties = _device.get_device_properties
_npu_getDeviceUtilizationRate = _device.utilization
_npu_canDeviceAccessPeer = _device.can_device_access_peer
_npu_get_soc_version = _device.get_soc_version
_npu_is_bf16_supported = _device.is_bf16_supported
_npu_is_support_inf_nan = _overflow.is_support_inf_nan
_npu_set_sync_debug_mode = _device.set_sync_debug_mode
_npu_get_sync_debug_mode = _device.get_sync_debug_mode
_npu_ipc_collect = _device.ipc_collect
_npu_sleep = _device._sleep
_npu_set_op_timeout_ms = utils.set_op_timeout_ms
_get_cann_version = utils.get_cann_version


def _get_silent_check_version() -> int:
    """The version of the check for silent faults: the one that needs no hooks of the program's."""
    return 2


_is_gte_cann_version = utils._is_gte_cann_version


def _npu_getDeviceName() -> str:
    return _device.get_device_name()


def _npu_getDeviceWithoutSet() -> int:
    """The current device; -1 before the device is first used."""
    return _device_module.current_device() if _device_module.started() else -1


def _npu_maybeExchangeDevice(index: int) -> int:
    """Changes the current device unless the index is negative; returns the one before."""
    return _device_module.exchange_device(index)


def _npu_hasPrimaryContext(index: int) -> bool:
    return _device_module.started() and 0 <= index < _device_module.device_count()


# --- streams ------------------------------------------------------------------------------------------------------


def _stream(index: int, number: int) -> tuple[int, int, int]:
    return number, index, torch._C._accelerator_getStream(index).device_type


def _npu_getCurrentStream(device: int) -> tuple[int, int, int]:
    """(stream_id, device_index, device_type) of the current stream."""
    _device_module.ensure_started()
    index = _device.memory_index(device)
    return _stream(index, _device_module.current_stream(index))


def _npu_getDefaultStream(device: int) -> tuple[int, int, int]:
    """(stream_id, device_index, device_type) of the default stream."""
    _device_module.ensure_started()
    return _stream(_device.memory_index(device), 0)


def _npu_getCurrentRawStream(device: int) -> int:
    """The handle of the current stream."""
    _device_module.ensure_started()
    return _device_module.current_stream(_device.memory_index(device)) + 1


_npu_getCurrentRawStreamNoWait = _npu_getCurrentRawStream


def _npu_setStream(stream_id: int, device_index: int, device_type: int) -> None:
    """Makes a stream current, and its device."""
    stream = torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    torch._C._accelerator_setStream(stream)


def _npu_eraseStream(
    tensor: torch.Tensor, stream_id: int, device_index: int, device_type: int
) -> None:
    stream = torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
    if tensor.device.type != "npu":
        raise RuntimeError(f"expected an npu tensor, but it is on {tensor.device}")
    _device_module.erase_stream(tensor, stream.stream_id)


_NPUTaskGroupHandle = _device_module.TaskGroup  # what graph_task_group_end returns

# --- memory ---------------------------------------------------------------------------------------------------------

_npu_emptyCache = memory.empty_cache
_npu_hostEmptyCache = memory.host_empty_cache
_npu_emptyVirtAddrCache = memory.empty_virt_addr_cache
_npu_memoryStats = memory.memory_stats_as_nested_dict
_npu_hostMemoryStats = memory.host_memory_stats_as_nested_dict
_npu_resetAccumulatedMemoryStats = memory.reset_accumulated_memory_stats
_npu_resetPeakMemoryStats = memory.reset_peak_memory_stats
_npu_getMemoryFraction = memory.get_per_process_memory_fraction
_npu_setMemoryFraction = memory.set_per_process_memory_fraction
_npu_getAllocatorBackend = memory.get_allocator_backend
_npu_npuCachingAllocator_set_allocator_settings = memory._set_allocator_settings
_npu_npuCachingAllocator_raw_delete = memory.caching_allocator_delete
_npu_npuCachingAllocator_set_allocator_settings = memory._set_allocator_settings
_npu_NPUAllocator = _memory_pool._NPUAllocator


def _npu_memorySnapshot(mempool_id: tuple[int, int] | None = None) -> dict[str, Any]:
    """`_snapshot()`, or of one pool."""
    found = memory._snapshot()
    if mempool_id is not None:
        found["segments"] = _memory_history.pool_snapshot(mempool_id)
    return found


def _npu_npuCachingAllocator_raw_alloc(size: int, stream: int) -> int:
    return memory.caching_allocator_alloc(size, None, stream)


def _npu_beginAllocateToPool(device: int, mempool_id: tuple[int, int]) -> None:
    """All allocations on the device come from the pool until `_npu_endAllocateToPool`."""
    _device_module.begin_pool(device, mempool_id, -1)


def _npu_beginAllocateCurrentStreamToPool(device: int, mempool_id: tuple[int, int]) -> None:
    """Allocations of the current stream come from the pool."""
    _device_module.begin_pool(device, mempool_id, _device_module.current_stream(device))


def _npu_beginAllocateCurrentThreadToPool(device: int, mempool_id: tuple[int, int]) -> None:
    """Allocations of this thread come from the pool."""
    _device_module.begin_pool_in_thread(device, mempool_id)


def _npu_endAllocateToPool(device: int, mempool_id: tuple[int, int]) -> None:
    _device_module.end_pool(device, mempool_id)


def _npu_releasePool(device: int, mempool_id: tuple[int, int]) -> None:
    """One user of the pool less; its memory goes back with the last one."""
    _device_module.release_pool(device, mempool_id)


def _empty_strided_npu(
    sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """`torch.empty_strided` on the current device, as compiled code calls it."""
    return torch.empty_strided(sizes, strides, dtype=dtype, device="npu")


def _weak_ref_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the same bytes that does not keep them alive."""
    weak = _device_module.weak_ref_tensor(tensor)
    _device_module.copy_storage_format(tensor.untyped_storage(), weak.untyped_storage())
    return weak


def _storage_Use_Count(storage_ptr: int) -> int:
    """How many hold the storage at `UntypedStorage._cdata`."""
    return _device_module.storage_use_count(storage_ptr)


# --- faults -----------------------------------------------------------------------------------------------------------

_npu_stopDevice = _recovery.stop_device
_npu_check_uce_in_memory = _recovery.check_uce_in_memory
_npu_get_uce_addr = _recovery._get_uce_addr
_check_npu_data_ptr = _recovery.check_npu_storage_is_safe
_mark_all_npu_data_ptr_unsafe = _recovery.mark_all_npu_tensor_unsafe
_update_npu_data_ptr = _recovery.update_npu_storage_to_safe
_set_npu_data_unsafe_flag = _recovery.set_npu_tensor_unsafe_check_flag
_get_npu_data_unsafe_flag = _recovery.get_npu_tensor_unsafe_check_flag


def _npu_restart_device(device: int) -> None:
    _recovery.restart_device(device)


# --- autocast ---------------------------------------------------------------------------------------------------------

is_autocast_enabled = _autocast.is_autocast_enabled
set_autocast_enabled = _autocast.set_autocast_enabled
get_autocast_dtype = _autocast.get_autocast_dtype
set_autocast_dtype = _autocast.set_autocast_dtype

# --- processors ----------------------------------------------------------------------------------------------------------

_first_affinity = os.sched_getaffinity(0)


def _npu_set_thread_affinity(cores: Sequence[int]) -> None:
    """Binds this thread to those of the processors that exist."""
    wanted = set(cores) & _first_affinity
    if not wanted:
        raise ValueError(f"no processor of {list(cores)} is this process's")
    os.sched_setaffinity(0, wanted)


def _npu_reset_thread_affinity() -> None:
    """Lets this thread run on every processor that it had at first."""
    os.sched_setaffinity(0, _first_affinity)
