"""TorchAir: graph mode for the npu device. torch.compile backends, options, caches, scopes, pattern rewriting.

`torch_npu.dynamo.torchair` is the same module.
"""

from __future__ import annotations

import torch_npu.dynamo  # noqa: F401
from torchair import (
    _acl_concrete_graph,
    core,
    ge,
    inference,
    llm_datadist,
    npu_fx_compiler,
    ops,
    scope,
)
from torchair.compiler import get_compiler, get_npu_backend
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.utils import logger
from torchair.experimental import patch_for_hcom, use_internal_format_weight
from torchair.ge import dynamo_export, register_fx_node_ge_converter
from torchair.patterns import register_replacement

__all__ = [
    "_acl_concrete_graph",
    "CompilerConfig",
    "core",
    "dynamo_export",
    "ge",
    "get_compiler",
    "get_npu_backend",
    "inference",
    "llm_datadist",
    "logger",
    "npu_fx_compiler",
    "ops",
    "patch_for_hcom",
    "register_fx_node_ge_converter",
    "register_replacement",
    "scope",
    "use_internal_format_weight",
]
