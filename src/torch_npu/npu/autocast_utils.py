"""torch.npu's own names for autocast on the npu."""

from __future__ import annotations

import torch

from torch_npu.npu._device import is_bf16_supported

__all__ = [
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that torch.autocast("npu") accepts on this chip."""
    if is_bf16_supported():
        return [torch.float16, torch.bfloat16, torch.float32]
    return [torch.float16, torch.float32]


def is_autocast_enabled() -> bool:
    """Whether autocast is on for the npu."""
    return torch.is_autocast_enabled("npu")


def set_autocast_enabled(enable: bool) -> None:
    """Turns autocast for the npu on or off."""
    if not isinstance(enable, bool):
        raise TypeError(f"enabled must be a bool (got {type(enable).__name__})")
    torch.set_autocast_enabled("npu", enable)


def get_autocast_dtype() -> torch.dtype:
    """The dtype that autocast computes in on the npu."""
    return torch.get_autocast_dtype("npu")


def set_autocast_dtype(dtype: torch.dtype) -> None:
    """Chooses the dtype that autocast computes in on the npu."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a torch.dtype (got {type(dtype).__name__})")
    torch.set_autocast_dtype("npu", dtype)
