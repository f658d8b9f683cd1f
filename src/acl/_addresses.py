"""Whether an address may be touched: no call with a wrong pointer may end the process."""

from __future__ import annotations

from acl import _device


def mapped(address: int, size: int, write: bool) -> bool:
    """Whether the process may read (and write) all these bytes."""
    if address <= 0 or size < 0:
        return False
    at, end = address, address + size
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:  # in the order of addresses
            span, rights = line.split(maxsplit=2)[:2]
            low, high = (int(part, 16) for part in span.split("-"))
            if low <= at < high and rights[0] == "r" and (not write or rights[1] == "w"):
                at = high
                if at >= end:
                    return True
    return size == 0


def on_device(address: int, size: int) -> bool:
    """Whether these bytes are memory of a device: of acl.rt.malloc, or a segment that tensors lie in.

    A segment is the device's as a whole: programs that put its memory to sleep copy it with what is free inside. What
    a user's own allocator gave out is known by its address alone, not by its size, so any memory may be that.
    """
    for start, (length, _) in _device.runtime.memory.items():
        if start <= address and address + size <= start + length:
            return True
    module = _device.module()
    if not module.started():
        return False
    from torch_npu.npu._memory_pool import plugins_in_use

    if plugins_in_use():
        return True
    return any(
        segment["address"] <= address
        and address + size <= segment["address"] + segment["total_size"]
        for index in range(module.device_count())
        for segment in module.memory_segments(index)
    )
