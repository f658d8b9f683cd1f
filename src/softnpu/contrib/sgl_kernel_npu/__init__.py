"""libsgl_kernel_npu.so in Python: the operators of sgl-kernel-npu, whose kernels are code of the card.

sgl_kernel_npu loads the library with `torch.ops.load_library` when it is imported. The entry point of the group
softnpu.kernels calls `install`; where the file does not exist, softnpu.contrib.sgl_kernel_npu.library is it.
"""

from __future__ import annotations

import importlib

from softnpu import kernels

__all__ = ["install"]

NAME = "libsgl_kernel_npu.so"


def install() -> None:
    """Makes the library loadable; twice does nothing."""
    if NAME not in kernels.registered_libraries():
        kernels.register_library(NAME, _define)


def _define() -> None:
    importlib.import_module("softnpu.contrib.sgl_kernel_npu.library")
