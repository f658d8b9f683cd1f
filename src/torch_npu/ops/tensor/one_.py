"""one_: fills a tensor with ones."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op


@npu_op("one_(Tensor(a!) self) -> Tensor(a!)")
def one_(self):
    r"""Writes 1 into every element, in place: $self_i = 1$.

    Args:
        self: any tensor; it is returned.

    Returns:
        `self`.
    """
    return self.fill_(1)


one_.samples = [
    Sample(lambda make: (make(2, 3),)),
    Sample(lambda make: (make(4, dtype=torch.int32, low=0, high=9),)),
]
