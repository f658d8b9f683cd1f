"""Overflow: the INF/NAN mode and the saturation mode, and the flag of the latter.

In saturation mode an operator whose finite inputs give infinities or NaN returns the largest finite number (0 for
NaN) and sets the device's flag. Infinities that a program writes itself stay, and set nothing.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch

from softnpu import _C, chips
from torch_npu._errors import ErrCode, pta_error


def _switch(variable: str, default: str) -> bool:
    text = os.environ.get(variable, default)
    if text not in ("0", "1"):
        raise RuntimeError(
            f"{variable} should be 0 or 1, but is {text!r}." + pta_error(ErrCode.VALUE)
        )
    return text == "1"


def is_support_inf_nan() -> bool:
    """True in INF/NAN mode, False in saturation mode.

    Atlas A2 and A3 are in INF/NAN mode unless INF_NAN_MODE_FORCE_DISABLE=1; Ascend950 always is; older chips
    never are.
    """
    _C.ensure_started()
    return inf_nan_mode()


def inf_nan_mode() -> bool:
    """`is_support_inf_nan` without starting the device."""
    chip = chips.current()
    if chip.family == "A5":
        return True
    enable, force_disable = (
        _switch("INF_NAN_MODE_ENABLE", "1"),
        _switch("INF_NAN_MODE_FORCE_DISABLE", "0"),
    )
    if not enable and chip.inf_nan and not force_disable:
        raise RuntimeError(
            "INF_NAN_MODE_ENABLE shouldn't be set to 0 on the current device. If you want to disable "
            "inf-nan mode, please export INF_NAN_MODE_FORCE_DISABLE=1" + pta_error(ErrCode.VALUE)
        )
    return chip.inf_nan and enable and not force_disable


def get_npu_overflow_flag() -> bool:
    """Whether an operator overflowed since the flag was cleared; only in saturation mode."""
    if is_support_inf_nan():
        raise RuntimeError(
            "Unsupported api when soc_version >= Ascend910B1, please use npu_check_overflow"
            + pta_error(ErrCode.NOT_SUPPORT)
        )
    return _C.overflow_flag(_C.current_device())


def clear_npu_overflow_flag() -> None:
    """Clears the flag; nothing but a warning in INF/NAN mode."""
    if is_support_inf_nan():
        warnings.warn(
            "When soc_version >= Ascend910B1, clear_npu_overflow_flag is useless. Please remove it.",
            stacklevel=2,
        )
        return
    _C.clear_overflow_flag(_C.current_device())


def npu_check_overflow(grad: Any) -> bool:
    """Whether `grad` (a tensor or a float) has an infinity or NaN; in saturation mode, whether the flag was
    set, which this clears."""
    if not is_support_inf_nan():
        overflowed = get_npu_overflow_flag()
        if overflowed:
            clear_npu_overflow_flag()
        return overflowed
    if isinstance(grad, float):
        grad = torch.tensor(grad)
    if not isinstance(grad, torch.Tensor):
        raise RuntimeError(
            f"Unsupported type {type(grad).__name__}: expected a tensor or a float."
            + pta_error(ErrCode.TYPE)
        )
    return not bool(torch.isfinite(grad).all())
