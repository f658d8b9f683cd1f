"""torch_npu.jit: TorchScript graphs with operators of the card."""

from torch_npu.jit.register_fusion_pattern import optimize

__all__ = ["optimize"]
