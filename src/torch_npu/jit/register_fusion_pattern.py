"""What `torch_npu.jit.optimize` does to a scripted or traced module."""

from __future__ import annotations

from typing import Any

import torch

from torch_npu.jit.fusion_pass.fast_gelu import fast_gelu_pass

__all__ = ["optimize"]


def optimize(jit_mod: Any) -> None:
    """Rewrites the module's graph in place: exact GELUs become `npu::fast_gelu`.

    As upstream does, it freezes a copy of a ScriptModule for inference first and drops that copy, so that a module
    which cannot be frozen raises here.
    """
    if isinstance(jit_mod, torch.jit.ScriptModule):
        torch.jit.optimize_for_inference(jit_mod)
    fast_gelu_pass(jit_mod)
