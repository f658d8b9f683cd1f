"""acl.rt's memory: device memory from torch's allocator, pinned host memory, copies."""

from __future__ import annotations

import ctypes

from acl import _addresses, _codes, _device
from acl._codes import (
    RT_CONTEXT_NULL,
    RT_MEMORY_ALLOCATION,
    RT_MEMORY_FREE,
    RT_PARAM_INVALID,
    SUCCESS,
)  # fmt: skip
from acl._device import runtime

_KINDS = range(5)  # host to host, to device, device to host, to device, default
_TO_DEVICE, _FROM_DEVICE = (1, 3), (2, 3)
_MAX_BYTES = 2**63 - 1  # of a request that can be counted
_ATTRIBUTES = range(10)  # ACL_DDR_MEM ... ACL_HBM_MEM_P2P_NORMAL: one memory here


def malloc(size: int, policy: int) -> tuple[int, int]:
    """(address, code) of device memory. `policy` chooses huge pages, which make no difference here."""
    _codes.integers("acl.rt.malloc", size=size, policy=policy)
    if size <= 0 or policy < 0:
        return 0, RT_PARAM_INVALID
    if not _device.has_context():
        return 0, RT_CONTEXT_NULL
    import torch

    device = torch.npu.current_device()
    try:
        address = torch.npu.caching_allocator_alloc(min(size, _MAX_BYTES))
    except torch.OutOfMemoryError as error:
        runtime.local.error = str(error)
        return 0, RT_MEMORY_ALLOCATION
    runtime.memory[address] = (size, device)
    return address, SUCCESS


malloc_cached = malloc


def free(ptr: int) -> int:
    """Frees what `malloc` gave."""
    _codes.integers("acl.rt.free", ptr=ptr)
    if runtime.memory.pop(ptr, None) is None:
        return RT_MEMORY_FREE if ptr else RT_PARAM_INVALID
    import torch

    torch.npu.caching_allocator_delete(ptr)
    return SUCCESS


def malloc_host(size: int) -> tuple[int, int]:
    """(address, code) of pinned host memory."""
    _codes.integers("acl.rt.malloc_host", size=size)
    if size <= 0:
        return 0, RT_PARAM_INVALID
    if not _device.has_context():
        return 0, RT_CONTEXT_NULL
    import torch

    try:
        held = torch.empty(min(size, _MAX_BYTES), dtype=torch.uint8, pin_memory=True)
    except torch.OutOfMemoryError as error:
        runtime.local.error = str(error)
        return 0, RT_MEMORY_ALLOCATION
    runtime.host[held.data_ptr()] = held
    return held.data_ptr(), SUCCESS


def free_host(ptr: int) -> int:
    """Frees what `malloc_host` gave."""
    _codes.integers("acl.rt.free_host", ptr=ptr)
    if runtime.host.pop(ptr, None) is None:
        return RT_MEMORY_FREE if ptr else RT_PARAM_INVALID
    return SUCCESS


def host_register(ptr: int, size: int, type: int) -> tuple[int, int]:
    """(address on the device, code) of host memory that devices may use from now on: its own address.

    Args:
        type: 0 (ACL_HOST_REGISTER_MAPPED), the only kind there is.
    """
    _codes.integers("acl.rt.host_register", ptr=ptr, size=size, type=type)
    if size <= 0 or type != 0 or ptr in runtime.registered:
        return 0, RT_PARAM_INVALID
    if not _device.has_context():
        return 0, RT_CONTEXT_NULL
    if not _addresses.usable(ptr, size, write=True):
        return 0, RT_PARAM_INVALID
    runtime.registered[ptr] = size
    return ptr, SUCCESS


def host_unregister(ptr: int) -> int:
    """Ends `host_register`."""
    _codes.integers("acl.rt.host_unregister", ptr=ptr)
    return RT_PARAM_INVALID if runtime.registered.pop(ptr, None) is None else SUCCESS


def memcpy(dst: int, dest_max: int, src: int, count: int, kind: int) -> int:
    """Copies `count` bytes after all work that was launched before; `dest_max` is the room at `dst`."""
    code = _check_copy("acl.rt.memcpy", dst, dest_max, src, count, kind)
    if code == SUCCESS:
        import torch

        torch.npu.synchronize()
        ctypes.memmove(dst, src, count)
    return code


def memcpy_async(dst: int, dest_max: int, src: int, count: int, kind: int, stream: int) -> int:
    """The copy as work of a stream, in the stream's order."""
    _codes.integers("acl.rt.memcpy_async", stream=stream)
    code = _check_copy("acl.rt.memcpy_async", dst, dest_max, src, count, kind)
    if code != SUCCESS or not count:
        return code
    return _on_stream(stream, lambda: _bytes(dst, count).copy_(_bytes(src, count)))


def memset(dev_ptr: int, max_count: int, value: int, count: int) -> int:
    """Sets `count` bytes to the low byte of `value`."""
    code = _check_set("acl.rt.memset", dev_ptr, max_count, value, count)
    if code == SUCCESS:
        import torch

        torch.npu.synchronize()
        ctypes.memset(dev_ptr, value & 255, count)
    return code


def memset_async(dev_ptr: int, max_count: int, value: int, count: int, stream: int) -> int:
    """`memset` as work of a stream."""
    _codes.integers("acl.rt.memset_async", stream=stream)
    code = _check_set("acl.rt.memset_async", dev_ptr, max_count, value, count)
    if code != SUCCESS or not count:
        return code
    return _on_stream(stream, lambda: _bytes(dev_ptr, count).fill_(value & 255))


def get_mem_info(attr: int) -> tuple[int, int, int]:
    """(free, total, code) in bytes of the current device; attributes for DDR and HBM give the same memory."""
    _codes.integers("acl.rt.get_mem_info", attr=attr)
    if attr not in _ATTRIBUTES:
        return 0, 0, RT_PARAM_INVALID
    if not _device.has_context():
        return 0, 0, RT_CONTEXT_NULL
    import torch

    return (*torch.npu.mem_get_info(), SUCCESS)


def _check_copy(call: str, dst: int, dest_max: int, src: int, count: int, kind: int) -> int:
    _codes.integers(call, dst=dst, dest_max=dest_max, src=src, count=count, kind=kind)
    if kind not in _KINDS or not 0 <= count <= dest_max or dst <= 0 or src <= 0:
        return RT_PARAM_INVALID
    if not _device.has_context():
        return RT_CONTEXT_NULL
    good = (
        _addresses.usable(dst, count, write=True)
        and _addresses.usable(src, count, write=False)
        and (kind not in _TO_DEVICE or _addresses.on_device(dst, count))
        and (kind not in _FROM_DEVICE or _addresses.on_device(src, count))
    )
    return SUCCESS if good else RT_PARAM_INVALID


def _check_set(call: str, ptr: int, max_count: int, value: int, count: int) -> int:
    _codes.integers(call, dev_ptr=ptr, max_count=max_count, value=value, count=count)
    if not 0 <= count <= max_count or ptr <= 0:
        return RT_PARAM_INVALID
    if not _device.has_context():
        return RT_CONTEXT_NULL
    return SUCCESS if _addresses.usable(ptr, count, write=True) else RT_PARAM_INVALID


def _bytes(address: int, size: int):  # type: ignore[no-untyped-def]
    """The bytes as an npu tensor, wherever they are."""
    import torch

    buffer = (ctypes.c_uint8 * size).from_address(address)
    host = torch.frombuffer(buffer, dtype=torch.uint8)
    return _device.module().device_view(host, torch.npu.current_device())


def _on_stream(handle: int, work) -> int:  # type: ignore[no-untyped-def]
    import torch

    found = _device.stream(handle)
    if found is None:
        return RT_PARAM_INVALID
    with torch.npu.stream(found):
        work()
    return SUCCESS
