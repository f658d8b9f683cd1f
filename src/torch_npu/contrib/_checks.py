"""How the functions and modules of contrib refuse an argument: upstream's classes and codes, our sentences."""

from __future__ import annotations

import warnings
from typing import Any

from torch_npu._errors import ErrCode, ops_error


def require(condition: object, function: str, argument: str, expected: str, received: Any) -> None:
    """ValueError unless the condition holds."""
    if not condition:
        raise ValueError(
            f"{function}: argument '{argument}' must be {expected}, but received {received}."
            + ops_error(ErrCode.VALUE)
        )


def require_type(
    condition: object, function: str, argument: str, expected: str, received: Any
) -> None:
    """TypeError unless the condition holds."""
    if not condition:
        raise TypeError(
            f"{function}: argument '{argument}' must be {expected}, but received {received}."
            + ops_error(ErrCode.TYPE)
        )


def unsupported(function: str, **given: Any) -> None:
    """NotImplementedError for the first argument that is given at all."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise NotImplementedError(
                f"{function}: argument '{name}' is not supported, neither by upstream's operator."
                + ops_error(ErrCode.NOT_SUPPORT)
            )


def deprecated(name: str, instead: str) -> None:
    warnings.warn(
        f"torch_npu.contrib.{name} is deprecated. Please use {instead} as a replacement.",
        FutureWarning,
        stacklevel=3,
    )
