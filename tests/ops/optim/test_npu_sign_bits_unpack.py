"""npu_sign_bits_unpack bit by bit, exactly."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("count,size", [(1, 1), (2, 4), (9, 3), (256, 2)])
def test_unpack(dtype, count, size):
    packed = make(count, dtype=torch.uint8, low=0, high=256)
    found = torch_npu.npu_sign_bits_unpack(packed, size, dtype)
    want = [1.0 if byte >> bit & 1 else -1.0 for byte in packed.tolist() for bit in range(8)]
    assert found.dtype == dtype and found.shape == (size, 8 * count // size)
    assert found.flatten().tolist() == want


def test_is_the_inverse_of_pack():
    signs = torch.where(make(48) < 0, -1.0, 1.0)
    packed = torch_npu.npu_sign_bits_pack(signs, 1).flatten()
    assert torch.equal(torch_npu.npu_sign_bits_unpack(packed, 1, torch.float32)[0], signs)


def test_bad_arguments():
    packed = make(3, dtype=torch.uint8, low=0, high=256)
    with pytest.raises(
        RuntimeError, match="npu_sign_bits_unpack: argument 'input' must be of dtype .*int8"
    ):
        torch_npu.npu_sign_bits_unpack(packed.to(torch.int8), 1, torch.float32)
    with pytest.raises(RuntimeError, match="'dtype' must be torch.float16 or torch.float32"):
        torch_npu.npu_sign_bits_unpack(packed, 1, torch.bfloat16)
    with pytest.raises(RuntimeError, match="'size' must be a divisor of the 24 bits.*5"):
        torch_npu.npu_sign_bits_unpack(packed, 5, torch.float32)
    with pytest.raises(RuntimeError, match="'input' must be a tensor of 1 dimensions"):
        torch_npu.npu_sign_bits_unpack(packed[None], 1, torch.float32)
