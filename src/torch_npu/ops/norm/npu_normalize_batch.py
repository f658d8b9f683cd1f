"""npu_normalize_batch: features normalized over the valid steps of each sequence."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op

EPSILON = 1e-5


@npu_op(
    "npu_normalize_batch(Tensor self, Tensor seq_len, int normalize_type=0) -> Tensor", aclop=True
)
def npu_normalize_batch(self, seq_len, normalize_type):
    r"""Normalizes each sequence by the mean and deviation of its valid steps.

    $$ y = \frac{x - \bar x}{\sigma + 10^{-5}}, \quad
       \sigma^2 = \frac{1}{n - 1} \sum (x - \bar x)^2 $$

    Args:
        self: x, (N, features, steps) float32.
        seq_len: the valid steps of each sequence, (N,) int32.
        normalize_type: 0 for the statistics of each feature, 1 for those of all features of a
            sequence together.

    Returns:
        y, with the shape and dtype of `self`, steps past the valid ones included.
    """
    x = wide(self)
    steps = torch.arange(x.shape[2], device=x.device)
    valid = (steps < seq_len[:, None])[:, None].expand(x.shape)
    dims = (2,) if normalize_type == 0 else (1, 2)
    count = valid.sum(dims, keepdim=True)
    mean = (x * valid).sum(dims, keepdim=True) / count
    squares = ((x - mean).square() * valid).sum(dims, keepdim=True)
    deviation = (squares / (count - 1)).sqrt()
    return ((x - mean) / (deviation + EPSILON)).to(self.dtype)


@npu_normalize_batch.check
def _(self, seq_len, normalize_type):
    must.dtype("self", self, torch.float32)
    must.ndim("self", self, 3)
    must.dtype("seq_len", seq_len, torch.int32)
    must.shape("seq_len", seq_len, (self.shape[0],))
    must.choice("normalize_type", normalize_type, (0, 1))


npu_normalize_batch.samples = [
    Sample(
        lambda make: (make(4, 3, 6), make(4, dtype=torch.int32, low=3, high=6)),
    ),
    Sample(lambda make: (make(4, 3, 6), make(4, dtype=torch.int32, low=3, high=6), 1)),
]
