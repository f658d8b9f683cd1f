"""npu_get_float_status: reads the overflow flag."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.status import _flag


@npu_op("npu_get_float_status(Tensor self, int mode=0) -> Tensor", aclop=True)
def npu_get_float_status(self, mode):
    """Whether an operator overflowed since the flag was cleared: the first of eight numbers is 1, or all are 0.

    The flag exists in saturation mode (INF_NAN_MODE_FORCE_DISABLE=1 on Atlas A2 and A3; always on older products).
    In INF/NAN mode the status is 0.

    Args:
        self: from `npu_alloc_float_status`; any tensor from Atlas A2 on, else float32 or int32.
        mode: 0 for the flag of the running program, 1 for the one of debugging; they are the same here.

    Returns:
        Shape (8), int32. On products before Atlas A2, in mode 0, `self` with the status written into it.
    """
    flag = int(_flag.overflowed())
    if mode == 0 and not _flag.of_its_own():
        self.view(-1)[:1].fill_(flag)
        return self
    status = torch.zeros(_flag.SIZE, dtype=torch.int32, device=self.device)
    status[0] = flag
    return status


@npu_get_float_status.check
def _(self, mode):
    _flag.check_mode(mode)
    if not _flag.of_its_own():
        must.dtype("self", self, torch.float32, torch.int32)


@npu_get_float_status.meta
def _(self, mode):
    if mode == 0 and not _flag.of_its_own():
        return self
    return torch.empty(_flag.SIZE, dtype=torch.int32, device=self.device)


npu_get_float_status.samples = [
    Sample(lambda make: (make(8),)),
    Sample(lambda make: (make(8),), {"mode": 1}),
]
