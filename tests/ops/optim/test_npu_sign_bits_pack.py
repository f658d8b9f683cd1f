"""npu_sign_bits_pack bit by bit, exactly."""

import math

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    "count,size", [(8, 1), (17, 1), (33, 5), (16, 2), (1, 1), (4096, 8), (0, 3)]
)
def test_pack(dtype, count, size):
    x = make(count, dtype=dtype, low=-10, high=10)
    packed = torch_npu.npu_sign_bits_pack(x, size)
    bits = np.array([value >= 0 for value in x.tolist()], dtype=bool)
    want = np.packbits(bits, bitorder="little").reshape(size, -1)
    assert packed.dtype == torch.uint8
    assert packed.cpu().numpy().tolist() == want.tolist()


def test_special_values():
    x = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, -1e-45, 1e-45, -1.0]).npu()
    assert torch_npu.npu_sign_bits_pack(x, 1).item() == 0b01001111


def test_strided_input():
    x = make(32)
    assert torch.equal(
        torch_npu.npu_sign_bits_pack(x[::2], 1), torch_npu.npu_sign_bits_pack(x[::2].clone(), 1)
    )


def test_bad_arguments():
    with pytest.raises(
        RuntimeError, match="npu_sign_bits_pack: argument 'self' must be of dtype .*int32"
    ):
        torch_npu.npu_sign_bits_pack(make(8, dtype=torch.int32, high=3), 1)
    with pytest.raises(RuntimeError, match="'self' must be a tensor of 1 dimensions"):
        torch_npu.npu_sign_bits_pack(make(8, 2), 1)
    for size in (2, 0, -1):
        with pytest.raises(RuntimeError, match=f"'size' must be a divisor of the 3 bytes.*{size}"):
            torch_npu.npu_sign_bits_pack(make(17), size)
