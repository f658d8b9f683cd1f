"""get_storage_size: how many elements a tensor's storage has, the format's padding included."""

from __future__ import annotations

import math

from torch_npu.ops._direct import memory_op
from torch_npu.ops._registry import Sample
from torch_npu.ops.format import _rules as rules


@memory_op("get_storage_size(Tensor self) -> int")
class GetStorageSize:
    """The number of elements of the tensor's storage: those that it was made with, and what its format pads.

    FRACTAL_NZ of (15, 17) in float16 has 1 x 2 blocks of 16 x 16, that is 512 elements.

    Args:
        self: an NPU tensor.

    Returns:
        The number of elements, in the dtype of the tensor that the storage was made for.
    """

    def kernel(self):
        return rules.describe(self).elements

    def meta(self):
        return math.prod(self.shape)

    samples = [Sample(lambda make: (make(2, 3),))]
