"""get_npu_format: the storage format of a tensor."""

from __future__ import annotations

import torch

from torch_npu.npu._format import Format
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _format_rules as rules


@npu_op("get_npu_format(Tensor self) -> int", direct=True, compiled="device")
def get_npu_format(self):
    """The storage format of a tensor, shared by all tensors on the same storage.

    A tensor that nobody cast has NCHW (0) for four dimensions, NCDHW (30) for five and ND (2) for others.

    Args:
        self: an NPU tensor.

    Returns:
        A `torch_npu.Format` (the plain number from `torch.ops.npu`).
    """
    return int(rules.describe(self).format)


@get_npu_format.meta
def _(self):
    return int(rules.guess(self.shape))


@get_npu_format.call
def _(self):
    return Format(torch.ops.npu.get_npu_format(self))


get_npu_format.samples = [
    Sample(lambda make: (make(2, 3),)),
    Sample(lambda make: (make(2, 3, 4, 4),)),
]
