"""TorchAir: graph mode for the npu device. torch.compile backends, options, caches, scopes, pattern rewriting.

`torch_npu.dynamo.torchair` is the same module.
"""

from __future__ import annotations

from typing import Any

import torch_npu.dynamo  # noqa: F401
from torchair import ge, inference, llm_datadist, ops, scope
from torchair._register import register as _register
from torchair.compiler import get_compiler, get_npu_backend
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.utils import logger
from torchair.experimental import patch_for_hcom, use_internal_format_weight
from torchair.patterns import register_replacement

__all__ = [
    "CompilerConfig",
    "ge",
    "get_compiler",
    "get_npu_backend",
    "inference",
    "llm_datadist",
    "logger",
    "ops",
    "patch_for_hcom",
    "register_replacement",
    "scope",
    "use_internal_format_weight",
]

_register()


def __getattr__(name: str) -> Any:
    """What stands at the top upstream, and belongs to the graph engine's graphs."""
    if name in ("dynamo_export", "register_fx_node_ge_converter"):
        return getattr(ge, name)
    raise AttributeError(f"module 'torchair' has no attribute {name!r}")
