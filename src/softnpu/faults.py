"""Faults on demand: what torch.npu's fault functions exist for, caused by the program itself.

    from softnpu import faults

    faults.memory_error(tensor)            # the next operator raises UCE ERROR, until restart_device
    faults.corrupt_products()              # every matrix product has one wrong bit, silently
    faults.stress("aic", 2)                # stress_detect finds a hardware fault
    faults.link_error()                    # the next operator raises HCCS LINK ERROR
    faults.out_of_memory(nth=3)            # the third allocation from now on fails
    faults.clear()                         # takes everything back

Every function takes `device`, the index of a device (0 if not given). Nothing injected, nothing changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from softnpu import _C

STRESS_KINDS = {"aic": 0, "hccs": 1}
_FAIL_TEXTS = {
    "link": "HCCS LINK ERROR",
    "ecc": "HBM MULTI BIT ECC ERROR.",
    "suspect_memory": "SUSPECT MEM ERROR",
    "suspect_remote": "SUSPECT REMOTE ERROR",
    "retry": "HCCL OP RETRY FAILED",
    "stuck": "The aicore execution times out, error code is 507014",
}


def _device(device: int) -> int:
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(f"device must be the index of a device, but received {device!r}")
    if not 0 <= device < _C.device_count():
        raise ValueError(f"device must be from 0 to {_C.device_count() - 1}, but received {device}")
    return device


def memory_error(where: Any, size: int = 32, device: int = 0) -> int:
    """An uncorrectable memory error at a tensor's first byte or at an address; returns the address.

    Each launch on the device raises UCE ERROR until `torch.npu.restart_device`.
    """
    if hasattr(where, "untyped_storage"):
        if where.device.type != "npu":
            raise ValueError(f"where must be an npu tensor or an address, but is on {where.device}")
        device, where = where.device.index, where.data_ptr()
    if isinstance(where, bool) or not isinstance(where, int) or where <= 0:
        raise TypeError(f"where must be an npu tensor or an address, but received {where!r}")
    if size <= 0:
        raise ValueError(f"size must be positive, but received {size}")
    _C.fault_memory(_device(device), where, size)
    return where


def link_error(device: int = 0) -> None:
    """The next operators raise HCCS LINK ERROR, until restart_device."""
    fail("link", device)


def fail(kind: str, device: int = 0) -> None:
    """The next operators raise the error of that kind, until restart_device."""
    if kind not in _FAIL_TEXTS:
        raise ValueError(f"kind must be one of {', '.join(_FAIL_TEXTS)}, but received {kind!r}")
    _C.fault_raise(_device(device), _FAIL_TEXTS[kind])


def corrupt_products(after: int = 0, device: int = 0) -> None:
    """Every matrix product and convolution after `after` more of them has one wrong bit, silently."""
    if after < 0:
        raise ValueError(f"after must not be negative, but received {after}")
    _C.fault_products(_device(device), after)


def stress(kind: str, result: int, device: int = 0) -> None:
    """What `torch.npu.stress_detect(kind)` finds: 0 nothing, 1 it cannot run, 2 a hardware fault.

    3 stands for the voltage that cannot be restored afterwards, which stress_detect raises.
    """
    if kind not in STRESS_KINDS:
        raise ValueError(f"kind must be one of {', '.join(STRESS_KINDS)}, but received {kind!r}")
    if result not in (0, 1, 2, 3):
        raise ValueError(f"result must be 0, 1, 2 or 3, but received {result!r}")
    _C.fault_stress(_device(device), STRESS_KINDS[kind], result)


def out_of_memory(nth: int = 1, device: int = 0) -> None:
    """The n-th allocation from now on raises the out-of-memory error, once."""
    if nth < 1:
        raise ValueError(f"nth must be at least 1, but received {nth}")
    _C.fault_allocation(_device(device), nth)


def clear() -> None:
    """Clears every fault on every device."""
    _C.fault_clear()


@contextlib.contextmanager
def injected() -> Iterator[None]:
    """Faults injected inside the block are gone after it."""
    try:
        yield
    finally:
        clear()
