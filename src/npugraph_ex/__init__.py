"""npugraph_ex: TorchAir's captured mode as a package of its own, with options by short names.

Upstream ships it beside torchair; both are one compiler here, so what a program replaces in one is replaced in both.
"""

from __future__ import annotations

import sys as _sys

import torchair as _torchair
from npugraph_ex import configs, core
from npugraph_ex._backend import get_compiler, get_npu_backend
from npugraph_ex.configs.compiler_config import CompilerConfig
from torchair import logger, npu_fx_compiler, ops, register_replacement
from torchair.inference import _cache_compiler
from torchair.npugraph_ex import compile_fx, inference, scope

__all__ = [
    "CompilerConfig",
    "compile_fx",
    "configs",
    "core",
    "get_compiler",
    "get_npu_backend",
    "inference",
    "logger",
    "npu_fx_compiler",
    "ops",
    "register_replacement",
    "scope",
]

# `import npugraph_ex.npu_fx_compiler` gives the module that compiles, not a copy of it.
_sys.modules |= {
    f"{__name__}.npu_fx_compiler": npu_fx_compiler,
    f"{__name__}.ops": ops,
    f"{__name__}.scope": scope,
    f"{__name__}.inference": inference,
    f"{__name__}.inference._cache_compiler": _cache_compiler,
    f"{__name__}._acl_concrete_graph": _torchair._acl_concrete_graph,
}
