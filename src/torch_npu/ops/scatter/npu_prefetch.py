"""npu_prefetch: a hint to load a tensor into the cache."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


@npu_op("npu_prefetch(Tensor self, Tensor? dependency, int max_size, int offset=0) -> ()")
def npu_prefetch():
    """Asks for up to `max_size` bytes of a tensor, from byte `offset` on, to be loaded into the L2 cache.

    Host memory has no such cache to fill, so nothing is computed and nothing changes; the arguments are checked.

    Args:
        self: the tensor to load; any dtype and layout.
        dependency: in a graph, the node after which loading starts; eagerly without effect.
        max_size: positive; more than the tensor holds means all of it.
        offset: from 0 to less than the tensor's size in bytes.

    Returns:
        None.
    """
    return None


@npu_prefetch.check
def _(self, dependency, max_size, offset):
    must.hold(max_size > 0, "max_size", "positive", max_size)
    must.hold(offset >= 0, "offset", "0 or positive", offset)
    size = self.numel() * self.element_size()
    must.hold(offset < size, "offset", f"less than the size of 'self', {size} bytes", offset)
    must.anything(dependency)


npu_prefetch.samples = [
    Sample(lambda make: (make(8, 8, dtype=torch.float16), None, 256)),
    Sample(lambda make: (make(16, 16), make(2), 4000), {"offset": 24}),
]
