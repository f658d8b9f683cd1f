"""Stopping, restarting and testing a device, and tensors whose bytes a fault took. Mirrors upstream's _recovery.py.

`softnpu.faults` causes what these functions are for.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import torch

from softnpu import _C
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu._device import memory_index

logger = logging.getLogger("torch_npu.recovery")


def _device(device_id: Any) -> int:
    if isinstance(device_id, bool) or not isinstance(device_id, int):
        raise TypeError(
            f"device_id must be an int, but received {type(device_id).__name__}"
            + pta_error(ErrCode.TYPE)
        )
    return memory_index(device_id)


def stop_device(device_id: int) -> int:
    """Stops a device: work not yet done is dropped, later work raises FORCE STOP. Returns 0."""
    index = _device(device_id)
    _C.ensure_started()
    logger.info("stop device, device_id=%s", index)
    _C.fault_stop(index)
    return 0


def restart_device(
    device_id: int, rebuild_all_resources: bool = False, disable_tensor_unsafe_check: bool = False
) -> None:
    """Makes a device work again, stopped or not, and repairs its memory errors.

    With `rebuild_all_resources`, every tensor on it counts as lost: using one raises until
    `update_npu_tensor_to_safe`, unless `disable_tensor_unsafe_check`.
    """
    index = _device(device_id)
    _C.ensure_started()
    logger.info(
        "restart device, device_id=%s, rebuild_all_resources=%s", index, rebuild_all_resources
    )
    if rebuild_all_resources and not disable_tensor_unsafe_check:
        mark_all_npu_tensor_unsafe(index)
        set_npu_tensor_unsafe_check_flag(True)
    _C.fault_restart(index)


# --- memory errors ----------------------------------------------------------------------------------------------


def _in_pool(index: int, fault: tuple[int, int]) -> bool:
    start, end = fault[0], fault[0] + fault[1]
    return any(
        s["address"] < end and start < s["address"] + s["total_size"]
        for s in _C.memory_segments(index)
    )


def check_uce_in_memory(device_id: int) -> int:
    """Whose memory the uncorrectable errors of a device are in.

    0: there is none; 1: not PyTorch's; 2: cached by PyTorch and unused, given back now; 3: in use by PyTorch,
    the tensors there count as lost.
    """
    index = _device(device_id)
    _C.ensure_started()
    if os.environ.get("PYTORCH_NO_NPU_MEMORY_CACHING"):
        raise RuntimeError(
            "check_uce_in_memory needs the memory cache: unset PYTORCH_NO_NPU_MEMORY_CACHING"
            + pta_error(ErrCode.NOT_SUPPORT)
        )
    if (_C.fault_at_launch(index) or "").startswith("HBM MULTI BIT ECC"):
        return 3
    faults = _C.fault_memory_list(index)
    if not faults:
        return 0
    if not any(_in_pool(index, f) for f in faults):
        return 1
    _C.empty_cache()
    resident = [f for f in faults if _in_pool(index, f)]
    if not resident:
        return 2
    _C.fault_memory_keep(index, resident)
    for address, size in resident:
        _C.mark_unsafe(index, address, size)
    set_npu_tensor_unsafe_check_flag(True)
    return 3


def _get_uce_addr() -> list[dict[str, int]]:
    """The uncorrectable errors of the current device: [{"ptr": address, "size": bytes}]."""
    _C.ensure_started()
    return [{"ptr": p, "size": n} for p, n in _C.fault_memory_list(_C.current_device())]


# --- tensors whose bytes are lost ---------------------------------------------------------------------------------


def _storage(storage: Any) -> Any:
    if isinstance(storage, torch.storage.TypedStorage):
        return storage.untyped()
    if not isinstance(storage, torch.UntypedStorage):
        raise RuntimeError(
            f"param type should be TypedStorage or UntypedStorage, could not be {type(storage)}"
            + pta_error(ErrCode.TYPE)
        )
    return storage


def _storage_of(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        raise RuntimeError(
            f"param type should be Tensor, could not be {type(tensor)}" + pta_error(ErrCode.TYPE)
        )
    return tensor.untyped_storage()


def check_npu_storage_is_safe(storage_obj: Any) -> bool:
    """Whether the bytes of a storage have not been lost."""
    return _C.storage_is_safe(_storage(storage_obj))


def check_npu_tensor_is_safe(tensor_obj: Any) -> bool:
    """Whether the bytes of a tensor have not been lost."""
    return check_npu_storage_is_safe(_storage_of(tensor_obj))


def mark_all_npu_tensor_unsafe(device: int) -> None:
    """Counts all tensors that a device holds now as lost."""
    _C.mark_all_unsafe(_device(device))


def update_npu_storage_to_safe(storage_obj: Any) -> None:
    """Says that the bytes of a storage have been written again."""
    _C.storage_make_safe(_storage(storage_obj))


def update_npu_tensor_to_safe(tensor_obj: Any) -> None:
    """Says that the bytes of a tensor have been written again."""
    update_npu_storage_to_safe(_storage_of(tensor_obj))


def set_npu_tensor_unsafe_check_flag(flag: bool) -> None:
    """Whether operators refuse tensors whose bytes are lost."""
    _C.set_unsafe(bool(flag))


def get_npu_tensor_unsafe_check_flag() -> bool:
    return _C.is_unsafe()


# --- stress test ------------------------------------------------------------------------------------------------


def _aic_test() -> int:
    """Two different ways to the same exact product must agree; 2 if they do not."""
    a = torch.arange(64 * 64, device="npu", dtype=torch.float32).reshape(64, 64) % 7 - 3
    b = (a.t() * 2 + 1).contiguous()
    product = torch.mm(a, b)
    by_hand = (a.unsqueeze(2) * b.unsqueeze(0)).sum(1)
    return 0 if torch.equal(product, by_hand) else 2


def stress_detect(detect_type: str = "aic") -> int:
    """Tests the device ("aic") or its links ("hccs"): 0 sound, 1 the test could not run, 2 a hardware fault."""
    if detect_type not in ("aic", "hccs"):
        warnings.warn(
            "Detect_type should be `aic` or `hccs`: `aic` tests the cores, `hccs` the links.",
            stacklevel=2,
        )
        return 1
    _C.ensure_started()
    if detect_type == "hccs" and not _ready_for_hccs():
        return 1
    index = _C.current_device()
    result = _C.fault_stress_result(index, 0 if detect_type == "aic" else 1)
    if result == 3:
        raise RuntimeError(
            "Stress detect error. Error code is 574007. Error message is Voltage recovery failed."
            + pta_error(ErrCode.ACL)
        )
    if result == 0 and detect_type == "aic":
        return _aic_test()
    return result


def _ready_for_hccs() -> bool:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        warnings.warn("torch.distributed should be initialized for p2p detection.", stacklevel=3)
        return False
    if not all(v in os.environ for v in ("RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")):
        warnings.warn(
            "Environment variables 'RANK', 'LOCAL_WORLD_SIZE' or 'WORLD_SIZE' are not set.",
            stacklevel=3,
        )
        return False
    return True
