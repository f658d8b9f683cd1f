"""torch.npu.amp.autocast and the decorators of custom autograd functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import deprecated

__all__ = ["autocast", "custom_bwd", "custom_fwd"]


class autocast(torch.amp.autocast_mode.autocast):
    """`torch.autocast("npu", ...)`."""

    def __init__(
        self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


@deprecated(
    "torch_npu.npu.amp.custom_fwd is deprecated, use torch.amp.custom_fwd with device_type='npu'.",
    category=FutureWarning,
)
def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None
) -> Any:
    """`torch.amp.custom_fwd(device_type="npu")`."""
    return functools.partial(torch.amp.custom_fwd, device_type="npu")(
        fwd=fwd, cast_inputs=cast_inputs
    )


@deprecated(
    "torch_npu.npu.amp.custom_bwd is deprecated, use torch.amp.custom_bwd with device_type='npu'.",
    category=FutureWarning,
)
def custom_bwd(bwd: Callable[..., Any]) -> Any:
    """`torch.amp.custom_bwd(device_type="npu")`."""
    return torch.amp.custom_bwd(bwd, device_type="npu")
