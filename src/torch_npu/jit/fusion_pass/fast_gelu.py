"""aten::gelu without approximation as npu::fast_gelu."""

from __future__ import annotations

from typing import Any

import torch

_EXACT = """
graph(%x):
    %kind = prim::Constant[value='none']()
    %out = aten::gelu(%x, %kind)
    return (%out)
"""

_FAST = """
graph(%x):
    %out = npu::fast_gelu(%x)
    return (%out)
"""


def fast_gelu_pass(jit_mod: Any) -> None:
    """Replaces every exact GELU of the graph."""
    torch._C._jit_pass_custom_pattern_based_rewrite_graph(_EXACT, _FAST, jit_mod.graph)
