"""optimize: what a TorchScript graph gains on the card."""

from __future__ import annotations

import torch

from torch_npu.jit.fusion_pass.fast_gelu import fast_gelu_pass

__all__ = ["optimize"]


def optimize(jit_mod: torch.jit.ScriptModule | torch.jit.ScriptFunction) -> None:
    """Rewrites the graph in place: GELU becomes npu::fast_gelu, and a module is prepared for inference."""
    if isinstance(jit_mod, torch.jit.ScriptModule):
        torch.jit.optimize_for_inference(jit_mod)
    fast_gelu_pass(jit_mod)
