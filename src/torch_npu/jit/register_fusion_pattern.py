"""optimize: what a TorchScript graph gains on the card."""

from __future__ import annotations

import torch

__all__ = ["optimize"]

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


def optimize(jit_mod: torch.jit.ScriptModule | torch.jit.ScriptFunction) -> None:
    """Rewrites the graph in place: GELU becomes npu::fast_gelu, and a module is prepared for inference."""
    if isinstance(jit_mod, torch.jit.ScriptModule):
        torch.jit.optimize_for_inference(jit_mod)
    torch._C._jit_pass_custom_pattern_based_rewrite_graph(_GELU, _FAST_GELU, jit_mod.graph)
