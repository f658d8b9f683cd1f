"""Which devices there are and which one is current."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from softnpu import _C, chips, settings


def is_available() -> bool:
    """Whether there is a device (there is none with SOFTNPU=0)."""
    return _C.device_count() > 0


def device_count() -> int:
    return _C.device_count()


def init() -> None:
    """Starts the device; every use does so by itself."""
    _C.ensure_started()


def _lazy_init() -> None:
    _C.ensure_started()


def is_initialized() -> bool:
    return _C.started() and not _C.in_forked_child()


def _is_in_bad_fork() -> bool:
    return _C.in_forked_child()


def current_device() -> int:
    """The index of the current device."""
    _C.ensure_started()
    return _C.current_device()


def index_of(device: Any, optional: bool = True) -> int:
    """The index that a user's device argument means: None, an int, a string or a torch.device."""
    if device is None and optional:
        return _C.current_device()
    if isinstance(device, bool) or not isinstance(device, (int, str, torch.device)):
        raise TypeError(f"expected an npu device, an index or None, but received {device!r}")
    if isinstance(device, int):
        return device if device >= 0 or not optional else _C.current_device()
    device = torch.device(device)
    if device.type != "npu":
        raise ValueError(f"Expected a npu device, but got: {device}")
    return _C.current_device() if device.index is None else device.index


def checked_index(device: Any) -> int:
    """`index_of`, and the device exists."""
    index = index_of(device)
    if not 0 <= index < _C.device_count():
        raise RuntimeError(
            f"invalid NPU device index {index}: this process has {_C.device_count()} NPU device(s)."
        )
    return index


def set_device(device: Any) -> None:
    """Makes a device the current one of this thread."""
    index = index_of(device)
    if index >= 0:
        _C.ensure_started()
        _C.set_device(index)


class device:
    """Context manager: another current device inside the block."""

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        _C.ensure_started()
        self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(self, *_: Any) -> None:
        _C.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of a tensor or storage; nothing if it is not on an NPU."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if getattr(obj, "is_npu", False) else None)


def synchronize(device: Any = None) -> None:
    """Waits until everything launched on the device is done."""
    index = checked_index(device)
    _C.ensure_started()
    _C.note_synchronisation(f"synchronize(npu:{index})")


def get_device_name(device: Any = None) -> str:
    """The chip's name, which programs branch on."""
    checked_index(device)
    return chips.current().name


def is_bf16_supported() -> bool:
    return "bfloat16" in chips.current().dtypes


@dataclass(frozen=True)
class DeviceProperties:
    """What `get_device_properties` returns; `emulated` tells it from hardware."""

    name: str
    total_memory: int
    cube_core_num: int
    vector_core_num: int
    L2_cache_size: int
    emulated: bool = True


def get_device_properties(device: Any = None) -> DeviceProperties:
    index = checked_index(device)
    chip = chips.get(settings.current().soc)
    return DeviceProperties(
        chip.name, _C.memory_info(index)[1], chip.cube_cores, chip.vector_cores, chip.l2_cache
    )
