"""torch_npu._inductor: programs import it so that torch.compile(backend="inductor") compiles for npu.

Nothing needs to be registered here: graphs on npu are compiled by TorchAir's backends, and Triton kernels run by
Triton's interpreter (docs/custom_kernels.md). `config` holds upstream's switches, which have no effect.
"""

from __future__ import annotations

from torch_npu._inductor import config

__all__ = ["config"]
