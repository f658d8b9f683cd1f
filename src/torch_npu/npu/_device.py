"""Which devices there are, which one is current, and what they can do."""

from __future__ import annotations

import os
import re
import time
import traceback
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from softnpu import _C, chips
from torch_npu import _register
from torch_npu._errors import ErrCode, pta_error

_queued: list[tuple[Callable[[], Any], list[str]]] = []


class DeferredNpuCallError(Exception):
    """A call queued with `_lazy_call` failed when the device started."""


def is_available() -> bool:
    """Whether there is a device (there is none with SOFTNPU=0)."""
    return _C.device_count() > 0


def device_count() -> int:
    """How many devices this process sees."""
    _register.see_devices()
    return _C.device_count()


def init() -> None:
    """Starts the device; every use does so by itself."""
    _lazy_init()


def _lazy_init() -> None:
    _register.see_devices()
    _C.ensure_started()


def _lazy_call(callback: Callable[[], Any]) -> None:
    """Calls now if the device has started, else when it starts."""
    if is_initialized():
        callback()
    else:
        _queued.append((callback, traceback.format_stack()))


def run_queued_calls() -> None:
    """What `_lazy_call` has deferred; the device calls this once, at its start."""
    while _queued:
        callback, origin = _queued.pop(0)
        try:
            callback()
        except RuntimeError as error:
            raise DeferredNpuCallError(
                f"NPU call failed lazily at initialization with error: {error}\n\n"
                f"NPU call was originally invoked at:\n\n{''.join(origin)}"
                + pta_error(ErrCode.INTERNAL)
            ) from error


def is_initialized() -> bool:
    """Whether the device has been used in this process."""
    return _C.started() and not _C.in_forked_child()


def _is_in_bad_fork() -> bool:
    return _C.in_forked_child()


def current_device() -> int:
    """The index of the current device."""
    _lazy_init()
    return _C.current_device()


def _no_device(index: int, upstream: str = "Invalid device argument") -> RuntimeError:
    return RuntimeError(
        f"invalid NPU device index {index}: this process has {_C.device_count()} NPU device(s)."
        f" (upstream: {upstream})" + pta_error(ErrCode.PARAM)
    )


def index_of(device: Any) -> int:
    """The index that a user's device argument means: None, an int, a string, a torch.device or a context."""
    if device is None:
        return _C.current_device()
    if isinstance(device, _device_context):
        return device.idx
    if isinstance(device, bool) or not isinstance(device, (int, str, torch.device)):
        raise TypeError(f"expected an npu device, an index or None, but received {device!r}")
    if isinstance(device, int):
        if not -(2**31) <= device < 2**31:
            raise _no_device(device)
        return device
    device = torch.device(device)
    if device.type != "npu":
        raise ValueError(f"Expected a npu device, but got: {device}" + pta_error(ErrCode.VALUE))
    return _C.current_device() if device.index is None else device.index


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Upstream's form of `index_of`: None only if `optional`, a CPU device is -1 if `allow_cpu`."""
    if device is None and not optional:
        raise ValueError(
            "Expected a torch.device with a specified index or an integer, but got: None"
        )
    if allow_cpu and isinstance(device, (str, torch.device)) and torch.device(device).type == "cpu":
        return -1
    return index_of(device)


def checked_index(device: Any) -> int:
    """`index_of`, and the device exists."""
    index = index_of(device)
    if not 0 <= index < _C.device_count():
        raise AssertionError(
            f"Invalid device id {index}: this process has {_C.device_count()} NPU device(s)."
            + pta_error(ErrCode.VALUE)
        )
    return index


def memory_index(device: Any) -> int:
    """`index_of` for memory and streams, where upstream's error is a RuntimeError."""
    index = index_of(device)
    if not 0 <= index < _C.device_count():
        raise _no_device(index)
    return index


def set_device(device: Any) -> None:
    """Makes a device the current one of this thread; a negative index changes nothing."""
    index = index_of(device)
    if index >= 0:
        _lazy_init()
        if index >= _C.device_count():
            raise _no_device(index, "Invalid device ID. Check whether the device ID is valid")
        _C.set_device(index)


class _device_context:
    idx: int


class device(_device_context):
    """Context manager: another current device inside the block; nothing for None or a negative index."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            _lazy_init()
            self.prev_idx = _C.exchange_device(self.idx)

    def __exit__(self, *_: Any) -> None:
        if self.idx >= 0:
            _C.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager: the device of a tensor or storage; nothing if it is not on an NPU."""

    def __init__(self, obj: Any) -> None:
        if not hasattr(obj, "is_npu"):
            raise TypeError(
                "device_of: argument 'obj' must be a tensor or a storage, but received "
                f"{type(obj).__name__}" + pta_error(ErrCode.TYPE)
            )
        super().__init__(obj.get_device() if obj.is_npu else -1)


def synchronize(device: Any = None) -> None:
    """Waits until everything launched on the device is done, and raises what went wrong there."""
    index = checked_index(device)
    _lazy_init()
    raise_fault(index)
    torch._C._accelerator_synchronizeDevice(index)


def note_synchronization(what: str) -> None:
    """A call that makes the host wait: warns or raises as `set_sync_debug_mode` says."""
    if _C.sync_debug_mode() == _SYNC_MODES["warn"]:
        warnings.warn(f"called a synchronizing NPU operation: {what}", stacklevel=3)
    else:
        _C.note_synchronization(what)


def raise_fault(index: int) -> None:
    """Raises what a launch on the device would raise now: a stop or an injected fault."""
    message = _C.fault_at_launch(index)
    if message is not None:
        raise RuntimeError(fault_text(message, index))


def fault_text(message: str, _index: int) -> str:
    """A device error as upstream words it: its name, then the error code line."""
    code = ErrCode.VALUE if message.startswith("There is unsafe data") else ErrCode.ACL
    return message.rstrip(".") + "." + pta_error(code)


def get_device_name(device_name: Any = None) -> str:
    """The chip's name, which programs branch on."""
    checked_index(device_name)
    return chips.current().name


def is_bf16_supported(including_emulation: bool = False) -> bool:
    """Whether the chip computes in bfloat16; `including_emulation` changes nothing, as upstream."""
    del including_emulation
    return "bfloat16" in chips.current().dtypes


def get_soc_version() -> int:
    """The chip's number in torch_npu's SocVersion."""
    _lazy_init()
    return chips.current().soc_version


@dataclass(frozen=True)
class DeviceProperties:
    """What `get_device_properties` returns; `emulated` tells it from hardware.

    The fields that a GPU has and an NPU has not are None, as upstream.
    """

    name: str
    total_memory: int
    cube_core_num: int
    vector_core_num: int
    L2_cache_size: int
    uuid: uuid.UUID
    major: int | None = None
    minor: int | None = None
    is_multi_gpu_board: int | None = None
    is_integrated: int | None = None
    multi_processor_count: int | None = None
    max_threads_per_multi_processor: int | None = None
    warp_size: int | None = None
    regs_per_multiprocessor: int | None = None
    gcnArchName: str | None = None
    emulated: bool = True


def get_device_properties(device_name: Any = None) -> DeviceProperties:
    """Name, memory and cores of a device."""
    index = checked_index(device_name)
    _lazy_init()
    chip = chips.current()
    return DeviceProperties(
        chip.name,
        _C.memory_info(index)[1],
        chip.cube_cores,
        chip.vector_cores,
        chip.l2_cache,
        uuid.uuid5(uuid.NAMESPACE_DNS, f"{chip.name}:{index}.softnpu"),
    )


def get_device_capability(device: Any = None) -> tuple[int, int] | None:
    """None, or what TORCH_NPU_DEVICE_CAPABILITY ("major.minor") says; it describes no real chip."""
    del device
    text = os.environ.get("TORCH_NPU_DEVICE_CAPABILITY", "")
    note = "get_device_capability exists for compatibility with PyTorch and describes no NPU."
    if not text:
        warnings.warn(
            f"Set TORCH_NPU_DEVICE_CAPABILITY to choose a capability. {note}", stacklevel=2
        )
        return None
    match = re.fullmatch(r"(\d+)\.(\d+)", text)
    if match is None:
        warnings.warn(
            f"TORCH_NPU_DEVICE_CAPABILITY must be 'major.minor' such as '8.0', but is {text!r}.",
            stacklevel=2,
        )
        return None
    warnings.warn(note, stacklevel=2)
    return int(match[1]), int(match[2])


def can_device_access_peer(device_id: Any, peer_device_id: Any) -> bool:
    """Whether one device reaches another's memory: every other one, but not itself."""
    ids = [_get_device_index(each, optional=True) for each in (device_id, peer_device_id)]
    for index, name in zip(ids, ("device id", "peer device id"), strict=True):
        if not 0 <= index < device_count():
            raise AssertionError(f"Invalid {name}: {index}" + pta_error(ErrCode.VALUE))
    return ids[0] != ids[1]


_last_utilization = (time.monotonic(), time.process_time())


def utilization(device: Any = None) -> int:
    """Percent of the time since the last call that this process kept the machine's processors busy.

    Differs from upstream: the devices compute on the host, so this is one number for all of them.
    """
    checked_index(device)
    _lazy_init()
    global _last_utilization
    before, now = _last_utilization, (time.monotonic(), time.process_time())
    _last_utilization = now
    elapsed = max(now[0] - before[0], 1e-9) * (os.cpu_count() or 1)
    return max(0, min(100, round(100 * (now[1] - before[1]) / elapsed)))


def current_blas_handle() -> None:
    """None: an NPU has no BLAS handle."""
    warnings.warn("NPU does not use blas handle.", stacklevel=2)


_SYNC_MODES = {"default": 0, "warn": 1, "error": 2}


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """What a synchronizing call does: "default" (0) nothing, "warn" (1) warns, "error" (2) raises."""
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_MODES:
            raise RuntimeError(
                "invalid value of debug_mode, expected one of `default`, `warn`, `error`, "
                f"but received {debug_mode!r}" + pta_error(ErrCode.PARAM)
            )
        debug_mode = _SYNC_MODES[debug_mode]
    if type(debug_mode) is not int or debug_mode not in _SYNC_MODES.values():
        raise RuntimeError(
            f"invalid value of debug_mode, expected one of 0,1,2, but received {debug_mode!r}"
            + pta_error(ErrCode.PARAM)
        )
    _C.set_sync_debug_mode(debug_mode)


def get_sync_debug_mode() -> int:
    """0, 1 or 2: see `set_sync_debug_mode`."""
    return _C.sync_debug_mode()


def ipc_collect() -> None:
    """Frees what other processes no longer share; shared memory here frees itself with its last user."""
    _lazy_init()


def _sleep(cycles: int) -> None:
    """Keeps the current stream busy for that many cycles of a 1 GHz clock."""
    if isinstance(cycles, bool) or not isinstance(cycles, int) or cycles < 0:
        raise TypeError(f"cycles must be a number of cycles, but received {cycles!r}")
    _lazy_init()
    time.sleep(cycles / 1e9)


def npurt() -> Any:
    """The raw runtime calls: npuHostRegister, npuHostUnregister, npuStreamCreate, npuStreamDestroy."""
    from torch_npu._C import _npurt

    _lazy_init()
    return _npurt
