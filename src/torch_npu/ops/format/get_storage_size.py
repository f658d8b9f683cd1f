"""get_storage_size: how many elements a tensor's storage has, the format's padding included."""

from __future__ import annotations

import math

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _format_rules as rules


@npu_op("get_storage_size(Tensor self) -> int", direct=True, compiled="device")
def get_storage_size(self):
    """The number of elements of the tensor's storage: those that it was made with, and what its format pads.

    FRACTAL_NZ of (15, 17) in float16 has 1 x 2 blocks of 16 x 16, that is 512 elements.

    Args:
        self: an NPU tensor.

    Returns:
        The number of elements, in the dtype of the tensor that the storage was made for.
    """
    return rules.describe(self).elements


@get_storage_size.meta
def _(self):
    return math.prod(self.shape)


get_storage_size.samples = [Sample(lambda make: (make(2, 3),))]
