"""GELU becomes npu::fast_gelu."""

from __future__ import annotations

import torch

_GELU = """
graph(%x):
    %approximate : str = prim::Constant[value='none']()
    %y = aten::gelu(%x, %approximate)
    return (%y)
"""
_FAST_GELU = """
graph(%x):
    %y = npu::fast_gelu(%x)
    return (%y)
"""


def fast_gelu_pass(jit_mod: torch.jit.ScriptModule | torch.jit.ScriptFunction) -> None:
    """Rewrites the graph in place."""
    torch._C._jit_pass_custom_pattern_based_rewrite_graph(_GELU, _FAST_GELU, jit_mod.graph)
