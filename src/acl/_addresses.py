"""Whether an address may be touched: no call with a wrong pointer may end the process."""

from __future__ import annotations

import mmap
import os

from acl import _device


def mapped(address: int, size: int, write: bool) -> bool:
    """Whether the process may read (and write) all these bytes."""
    if address <= 0 or size < 0:
        return False
    at, end = address, address + size
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:  # in the order of addresses
            span, rights, *rest = line.split(maxsplit=5)
            low, high = (int(part, 16) for part in span.split("-"))
            if low <= at < high and rights[0] == "r" and (not write or rights[1] == "w"):
                if len(rest) > 3 and not _there(at, min(high, end)):
                    return False
                at = high
                if at >= end:
                    return True
    return size == 0


def _there(first: int, end: int) -> bool:
    """Whether the pages of a file exist: it may have become shorter. The kernel's own pages say they do, and do not."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        try:
            for at in range(first, end, mmap.PAGESIZE):
                os.pread(memory.fileno(), 1, at)
            os.pread(memory.fileno(), 1, end - 1)
        except OSError:
            return False
    return True


def on_device(address: int, size: int) -> bool:
    """Whether these bytes are memory that a device may use: of acl.rt.malloc, of a tensor, or registered.

    What a user's own allocator gave out is known by its address alone, not by its size, so any memory may be that.
    """
    if _held(address, size):
        return True
    if any(
        start <= address and address + size <= start + length
        for start, length in _device.runtime.registered.items()
    ):
        return True
    if not _device.module().started():
        return False
    from torch_npu.npu._memory_pool import plugins_in_use

    return plugins_in_use()


def usable(address: int, size: int, write: bool) -> bool:
    """Whether the bytes may be read (and written), and are not memory of a device that nobody holds any more."""
    return mapped(address, size, write) and _held(address, size) is not False


def _held(address: int, size: int) -> bool | None:
    """None for bytes that have nothing to do with a device.

    What acl.rt.malloc gave ends where it was said to. Of tensors' memory, programs that put it to sleep copy whole
    segments, with what is free between the tensors.
    """
    for start, (length, _) in _device.runtime.memory.items():
        if start <= address < start + length:
            return address + size <= start + length
    module = _device.module()
    if not module.started():
        return None
    for index in range(module.device_count()):
        for segment in module.memory_segments(index):
            first, last = segment["address"], segment["address"] + segment["total_size"]
            if address + size <= first or last <= address:
                continue
            return (
                address >= first
                and address + size <= last
                and any(
                    block["state"] != "inactive"
                    and block["address"] < address + size
                    and address < block["address"] + block["size"]
                    for block in segment["blocks"]
                )
            )
    return None
