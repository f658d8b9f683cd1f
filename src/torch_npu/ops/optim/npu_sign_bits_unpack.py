"""npu_sign_bits_unpack: bytes of signs as floats."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


@npu_op("npu_sign_bits_unpack(Tensor input, int size, ScalarType dtype) -> Tensor", aclop=True)
def npu_sign_bits_unpack(input, size, dtype):
    r"""Unpacks the bits of bytes, the lowest first: 1 becomes 1.0, 0 becomes -1.0.

    Args:
        input: one-dimensional, uint8.
        size: the first dimension of the result; it divides the number of bits.
        dtype: torch.float16 or torch.float32.

    Returns:
        The signs, of shape (size, 8 * bytes / size).
    """
    weights = 2 ** torch.arange(8, dtype=torch.uint8, device=input.device)
    bits = (input.unsqueeze(1) & weights) != 0
    return (bits.to(dtype) * 2 - 1).reshape(size, -1)


@npu_sign_bits_unpack.check
def _(input, size, dtype):
    must.dtype("input", input, torch.uint8)
    must.ndim("input", input, 1)
    count = 8 * input.shape[0]
    divides = size > 0 and count % size == 0
    must.hold(divides, "size", f"a divisor of the {count} bits", size, ErrCode.PARAM)
    must.choice("dtype", dtype, (torch.float16, torch.float32))


npu_sign_bits_unpack.samples = [
    Sample(lambda make: (make(3, dtype=torch.uint8, low=0, high=256), 2, torch.float32)),
    Sample(lambda make: (make(4, dtype=torch.uint8, low=0, high=256), 4, torch.float16)),
]
