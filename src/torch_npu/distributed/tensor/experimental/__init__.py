"""torch_npu.distributed.tensor.experimental: `context_parallel`, torch's own."""

from torch.distributed.tensor.experimental import context_parallel

__all__ = ["context_parallel"]
