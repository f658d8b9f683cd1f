"""torch_npu.jit: fusions over TorchScript."""

from __future__ import annotations

from torch_npu.jit.register_fusion_pattern import optimize

__all__ = ["optimize"]
