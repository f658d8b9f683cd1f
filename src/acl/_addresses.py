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
    """Whether these bytes are memory of a device that someone holds: acl.rt.malloc or a tensor."""
    for start, (length, _) in _device.runtime.memory.items():
        if start <= address and address + size <= start + length:
            return True
    module = _device.module()
    if not module.started():
        return False
    for index in range(module.device_count()):
        for segment in module.memory_segments(index):
            if not segment["address"] <= address < segment["address"] + segment["total_size"]:
                continue
            for block in segment["blocks"]:
                inside = block["address"] <= address < block["address"] + block["size"]
                if inside and block["state"] != "inactive":
                    return address + size <= block["address"] + block["size"]
    return False
