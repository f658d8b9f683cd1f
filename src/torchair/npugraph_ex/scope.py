"""torch.npu.npugraph_ex.scope: limits of cores for the operators in a range."""

from __future__ import annotations

from torchair.scope import limit_core_num

__all__ = ["limit_core_num"]
