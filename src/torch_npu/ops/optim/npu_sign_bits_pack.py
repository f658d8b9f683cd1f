"""npu_sign_bits_pack: the signs of floats, eight to a byte."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


@npu_op("npu_sign_bits_pack(Tensor self, int size) -> Tensor", aclop=True)
def npu_sign_bits_pack(self, size):
    r"""Packs signs into bytes: 1 for zero and above, 0 for below; the first is the lowest bit.

    $$ y_b = \sum_{k=0}^{7} [x_{8b+k} \ge 0] \cdot 2^k $$

    Args:
        self: one-dimensional, float16 or float32. What is missing to a multiple of eight counts as
            negative; NaN counts as positive.
        size: the first dimension of the result; it divides the number of bytes.

    Returns:
        The bytes in uint8, of shape (size, bytes / size).
    """
    positive = ~(self < 0)
    missing = -self.shape[0] % 8
    bits = torch.nn.functional.pad(positive.to(torch.uint8), (0, missing)).reshape(-1, 8)
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=self.device)
    return (bits * weights).sum(1, dtype=torch.uint8).reshape(size, -1)


@npu_sign_bits_pack.check
def _(self, size):
    must.dtype("self", self, torch.float16, torch.float32)
    must.ndim("self", self, 1)
    count = (self.shape[0] + 7) // 8
    divides = size > 0 and count % size == 0
    must.hold(divides, "size", f"a divisor of the {count} bytes", size, ErrCode.PARAM)


npu_sign_bits_pack.samples = [
    Sample(lambda make: (make(17), 1)),
    Sample(lambda make: (make(32, dtype=torch.float16), 2)),
]
