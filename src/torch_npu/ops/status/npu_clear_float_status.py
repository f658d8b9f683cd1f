"""npu_clear_float_status: clears the overflow flag."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.status import _flag


@npu_op("npu_clear_float_status(Tensor self, int mode=0) -> Tensor", aclop=True)
def npu_clear_float_status(self):
    """Clears the overflow flag of the device.

    Args:
        self: from `npu_alloc_float_status` or `npu_get_float_status`; any tensor from Atlas A2 on, else float32 or int32.
        mode: 0 for the flag of the running program, 1 for the one of debugging; they are the same here.

    Returns:
        Zeros of shape (8), in the dtype of `self`.
    """
    _flag.clear()
    return torch.zeros(_flag.SIZE, dtype=self.dtype, device=self.device)


@npu_clear_float_status.check
def _(self, mode):
    _flag.check_mode(mode)
    if not _flag.of_its_own():
        must.dtype("self", self, torch.float32, torch.int32)


@npu_clear_float_status.meta
def _(self):
    return torch.empty(_flag.SIZE, dtype=self.dtype, device=self.device)


npu_clear_float_status.samples = [
    Sample(lambda make: (make(8),)),
    Sample(lambda make: (make(2),), {"mode": 1}),
]
