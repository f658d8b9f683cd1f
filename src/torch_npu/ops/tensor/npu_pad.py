"""npu_pad: zeros around a tensor."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


@npu_op("npu_pad(Tensor input, int[] paddings) -> Tensor", aclop=True)
def npu_pad(input, paddings):
    r"""Adds zeros before and after each dimension, $size_d + paddings_{2d} + paddings_{2d+1}$.

    Args:
        input: any tensor.
        paddings: (before, after) for the first dimension, then for the second, and so on; what is
            missing at the end is 0, and what is left over counts for nothing.

    Returns:
        A contiguous tensor with the dtype of `input`.
    """
    ends = [*paddings, *[0] * (2 * input.dim() - len(paddings))][: 2 * input.dim()]
    pairs = list(zip(ends[0::2], ends[1::2], strict=True))
    sizes = [s + a + b for s, (a, b) in zip(input.shape, pairs, strict=True)]
    out = torch.zeros(sizes, dtype=input.dtype, device=input.device)
    window = tuple(slice(a, a + s) for s, (a, _) in zip(input.shape, pairs, strict=True))
    out[window] = input
    return out


@npu_pad.check
def _(input, paddings):
    must.hold(all(p >= 0 for p in paddings), "paddings", "non-negative", list(paddings))
    must.countable("paddings", sum(paddings) + max(input.shape, default=0), list(paddings))


npu_pad.samples = [
    Sample(lambda make: (make(1, 4, dtype=torch.float16), [1, 1, 1, 1])),
    Sample(lambda make: (make(2, 3, 4), [0, 2]), name="first dimension"),
]
