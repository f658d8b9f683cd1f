"""The module vllm_ascend_C: importing it defines the operators and gives them kernels, as the compiled one does."""

import os
from typing import Any

from softnpu.contrib.vllm_ascend import (
    attention,
    cache,
    common,
    compress,
    conv,
    csr,
    epilogs,
    fused,
    gmm,
    linear,
    mla,
    moe,
    norm,
    printing,
    shared,
    shared_quant,
    sleep,
    speculate,
    streams,
    swiglu,
    triton_kernels,
)
from softnpu.contrib.vllm_ascend._define import define, define_on_host

__all__: list[str] = []

#: those whose operators are defined when they are imported
MODULES = (
    common,
    compress,
    conv,
    csr,
    epilogs,
    fused,
    gmm,
    linear,
    mla,
    printing,
    shared,
    shared_quant,
    speculate,
    streams,
    swiglu,
    triton_kernels,
)

# From torch 2.10 on vLLM wants compiled graphs that can be stored, and loads them when it starts again; the compilers of
# vllm-ascend make none, so that the second start would fail.
os.environ.setdefault("VLLM_USE_AOT_COMPILE", "0")

for part in (attention, cache, moe, norm):
    define(part.OPERATORS)
define_on_host(cache.HOST_OPERATORS)


def __getattr__(name: str) -> Any:
    """The functions of sleep mode: a library is compiled for them on first use."""
    if name not in ("init_module", "python_create_and_map", "python_unmap_and_release"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    sleep.load()
    return getattr(sleep, name)
