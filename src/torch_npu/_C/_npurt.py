"""torch.npu.npurt(): raw runtime calls. Each returns 0, or an error code of CANN."""

from __future__ import annotations

import ctypes
import itertools

SUCCESS, INVALID_PARAM = 0, 100000

_handles = itertools.count(1 << 32)  # far from the streams that torch.npu hands out
_streams: set[int] = set()
_registered: dict[int, int] = {}


def npuHostRegister(ptr: int, size: int, flags: int) -> int:
    """Makes host memory reachable by the device, which all of it is here; a range only once."""
    if ptr == 0 or size <= 0 or flags < 0 or ptr in _registered:
        return INVALID_PARAM
    _registered[ptr] = size
    return SUCCESS


def npuHostUnregister(ptr: int) -> int:
    """Takes `npuHostRegister` back."""
    return INVALID_PARAM if _registered.pop(ptr, None) is None else SUCCESS


def npuStreamCreate(ptr: int) -> int:
    """Writes the handle of a new stream to the address `ptr`; torch.npu.ExternalStream takes it."""
    if ptr == 0:
        return INVALID_PARAM
    handle = next(_handles)
    _streams.add(handle)
    ctypes.c_void_p.from_address(ptr).value = handle
    return SUCCESS


def npuStreamDestroy(ptr: int) -> int:
    """Ends a stream, given by its handle."""
    if ptr not in _streams:
        return INVALID_PARAM
    _streams.remove(ptr)
    return SUCCESS
