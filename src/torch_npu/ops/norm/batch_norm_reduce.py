"""batch_norm_reduce: the sums of batch normalization."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op


@npu_op("batch_norm_reduce(Tensor input, float eps) -> (Tensor, Tensor)", ge="BNTrainingReduce")
def batch_norm_reduce(input):
    r"""The sum and the sum of squares of each channel.

    $$ s_c = \sum_{n,h,w} x_{n,c,h,w}, \quad q_c = \sum_{n,h,w} x_{n,c,h,w}^2 $$

    Args:
        input: x, at least 2 dimensions, the channel second; float16, bfloat16 or float32.
        eps: not used by upstream.

    Returns:
        s and q, (C,) float32.
    """
    x = wide(input)
    others = [d for d in range(x.dim()) if d != 1]
    return x.sum(others), x.square().sum(others)


@batch_norm_reduce.check
def _(input, eps):
    must.dtype("input", input, torch.float16, torch.bfloat16, torch.float32)
    shape = tuple(input.shape)
    upstream = "The dim input tensor [self] must more than 1."
    must.hold(len(shape) > 1, "input", "of at least 2 dimensions", shape, upstream=upstream)
    must.hold(isinstance(eps, float), "eps", "a number", eps)


batch_norm_reduce.samples = [
    Sample(lambda make: (make(2, 3, 4, 5), 1e-5)),
    Sample(lambda make: (make(4, 6, dtype=torch.float16), 1e-5)),
]
