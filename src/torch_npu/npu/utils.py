"""Upstream's torch_npu.npu.utils: its names under its path, and the versions of CANN."""

from __future__ import annotations

import re
from typing import Any

import torch

from softnpu import _C, settings
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu._device import (
    _get_device_index,
    current_blas_handle,
    current_device,
    device,
    device_of,
    get_soc_version,
    get_sync_debug_mode,
    ipc_collect,
    is_bf16_supported,
    set_device,
    set_sync_debug_mode,
    synchronize,
)
from torch_npu.npu._dump import finalize_dump, init_dump, set_dump
from torch_npu.npu._overflow import (
    clear_npu_overflow_flag,
    get_npu_overflow_flag,
    is_support_inf_nan,
    npu_check_overflow,
)
from torch_npu.npu._recovery import _get_uce_addr, check_uce_in_memory, stress_detect
from torch_npu.npu.streams import (
    StreamContext,
    _BaseStream,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "StreamContext",
    "_erase_stream",
    "_get_device_index",
    "_get_uce_addr",
    "_is_gte_cann_version",
    "check_uce_in_memory",
    "clear_npu_overflow_flag",
    "current_blas_handle",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_of",
    "finalize_dump",
    "get_cann_version",
    "get_npu_overflow_flag",
    "get_soc_version",
    "get_sync_debug_mode",
    "init_dump",
    "ipc_collect",
    "is_bf16_supported",
    "is_support_inf_nan",
    "npu_check_overflow",
    "set_device",
    "set_dump",
    "set_op_timeout_ms",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "stress_detect",
    "synchronize",
]

_MODULES = ("CANN", "RUNTIME", "COMPILER", "HCCL", "TOOLKIT", "OPP", "OPP_KERNEL", "DRIVER")


def get_cann_version(module: str = "CANN") -> str:
    """The version that a part of CANN has (SOFTNPU_CANN_VERSION, for all parts alike)."""
    if module not in _MODULES:
        raise ValueError(
            f"module must be one of {', '.join(_MODULES)}, but received {module!r}"
            + pta_error(ErrCode.PARAM)
        )
    return settings.current().cann_version


def _version_key(text: str) -> tuple[Any, ...]:
    """`8.5.0` > `8.5.0.RC1` > `8.5.0.alpha003`: a release is above its candidates, those above its alphas."""
    parts = re.split(r"[.\-]", text.lower())
    numbers = [int(p) for p in parts if p.isdecimal()]
    numbers += [0] * (3 - len(numbers))
    rank, serial = 9, 0
    for part in parts:
        for order, tag in enumerate(("alpha", "beta", "rc")):
            if part.startswith(tag):
                digits = re.sub(r"\D", "", part)
                rank, serial = order, int(digits or 0)
    return (*numbers[:3], rank, serial, *numbers[3:])


def _is_gte_cann_version(version: str, module: str = "CANN") -> bool:
    """Whether a part of CANN is at least of this version."""
    if not isinstance(version, str) or not re.match(r"\d+\.", version):
        raise ValueError(f"version must be such as 8.5.0, but received {version!r}")
    return _version_key(get_cann_version(module)) >= _version_key(version)


def _erase_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Undoes `tensor.record_stream(stream)`, after the stream's work on it has been waited for."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"tensor should be torch.Tensor, could not be {type(tensor)}" + pta_error(ErrCode.TYPE)
        )
    if not isinstance(stream, _BaseStream):
        raise TypeError(
            f"stream should be torch_npu.npu.Stream, could not be {type(stream)}"
            + pta_error(ErrCode.TYPE)
        )
    _C.erase_stream(tensor, stream.stream_id)


op_timeout_ms: int | None = None


def set_op_timeout_ms(timeout: int) -> None:
    """How long an operator may run. Operators end before they return here, so none is ever cut off."""
    global op_timeout_ms
    if isinstance(timeout, bool) or not isinstance(timeout, int):
        raise TypeError(
            f"timeout must be an int, but received {timeout!r}" + pta_error(ErrCode.TYPE)
        )
    if timeout <= 0:
        raise RuntimeError(
            f"timeout must be a positive number of milliseconds, but received {timeout}"
            + pta_error(ErrCode.VALUE)
        )
    _C.ensure_started()
    op_timeout_ms = timeout
