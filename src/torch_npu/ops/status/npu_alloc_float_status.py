"""npu_alloc_float_status: the tensor that the overflow status is read into."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.status._flag import SIZE


@npu_op("npu_alloc_float_status(Tensor self) -> Tensor", aclop=True)
def npu_alloc_float_status(self):
    """A tensor of eight float32 zeros, for `npu_get_float_status`.

    Args:
        self: any tensor of the device.

    Returns:
        Zeros of shape (8), float32.
    """
    return torch.zeros(SIZE, dtype=torch.float32, device=self.device)


@npu_alloc_float_status.check
def _(self):
    must.hold(self.layout == torch.strided, "self", "a dense tensor", self.layout)


npu_alloc_float_status.samples = [
    Sample(lambda make: (make(1, 2, 3),)),
    Sample(lambda make: (make(0),)),
]
