"""`torch_npu.atb`: the operators of Ascend Transformer Boost by the names that `torch.ops.atb` has."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import operators

__all__ = sorted(
    {o.schema.name.split("::")[1] for o in operators.values() if o.schema.name.startswith("atb::")}
)
globals().update({name: getattr(torch.ops.atb, name) for name in __all__})
