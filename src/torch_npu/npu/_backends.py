"""Names of torch.backends.cuda under torch.npu: which attention and linear algebra kernels may be used."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch


def flash_sdp_enabled() -> bool:
    """Whether scaled_dot_product_attention may take the flash kernel."""
    return torch._C._get_flash_sdp_enabled()


def enable_flash_sdp(enabled: bool) -> None:
    """Lets scaled_dot_product_attention take the flash kernel, or not."""
    torch._C._set_sdp_use_flash(enabled)


def mem_efficient_sdp_enabled() -> bool:
    """Whether scaled_dot_product_attention may take the memory-efficient kernel."""
    return torch._C._get_mem_efficient_sdp_enabled()


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Lets scaled_dot_product_attention take the memory-efficient kernel, or not."""
    torch._C._set_sdp_use_mem_efficient(enabled)


def math_sdp_enabled() -> bool:
    """Whether scaled_dot_product_attention may be computed from its formula."""
    return torch._C._get_math_sdp_enabled()


def enable_math_sdp(enabled: bool) -> None:
    """Lets scaled_dot_product_attention be computed from its formula, or not."""
    torch._C._set_sdp_use_math(enabled)


@contextlib.contextmanager
def sdp_kernel(
    enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True
) -> Iterator[dict[str, Any]]:
    """Other choices inside the block."""
    before = flash_sdp_enabled(), math_sdp_enabled(), mem_efficient_sdp_enabled()

    def choose(flash: bool, math: bool, mem_efficient: bool) -> None:
        enable_flash_sdp(flash)
        enable_math_sdp(math)
        enable_mem_efficient_sdp(mem_efficient)

    choose(enable_flash, enable_math, enable_mem_efficient)
    try:
        yield {}
    finally:
        choose(*before)


def preferred_linalg_library(backend: Any = None) -> Any:
    """The default: there is only one linear algebra library; another cannot be chosen."""
    if backend not in (None, "default", torch._C._LinalgBackend.Default):
        warnings.warn(
            f"torch.npu.preferred_linalg_library: {backend!r} is not available.", stacklevel=2
        )
    return torch._C._LinalgBackend.Default
