"""npu_stride_add against loops over channels."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    "c1,c2,offset1,offset2,blocks", [(32, 48, 1, 2, 1), (32, 32, 0, 0, 2), (20, 7, 1, 0, 1)]
)
def test_slices(c1, c2, offset1, offset2, blocks, dtype):
    x, z = make(2, c1, 3, 2, dtype=dtype), make(2, c2, 3, 2, dtype=dtype, seed=5)
    y = torch_npu.npu_stride_add(x, z, offset1, offset2, blocks)
    assert y.shape == (2, 16 * blocks, 3, 2) and y.dtype == dtype
    want = torch.zeros(2, 16 * blocks, 3, 2, dtype=dtype)
    for c in range(16 * blocks):
        for t, first, count in ((x, offset1, c1), (z, offset2, c2)):
            if 16 * first + c < count:
                want[:, c] += t.cpu()[:, 16 * first + c]
    assert torch.equal(y.cpu(), want)


def test_channels_past_the_end_are_zero():
    x = torch.ones(1, 1, 1, 1, 1).to(make(1).device)
    assert torch_npu.npu_stride_add(x, x, 0, 0, 1).flatten().tolist() == [2.0] + [0.0] * 15


@pytest.mark.family("A2")
def test_refusals():
    with pytest.raises(RuntimeError, match="'c1_len' must be positive, but received 0"):
        torch_npu.npu_stride_add(make(1, 16), make(1, 16), 0, 0, 0)
    with pytest.raises(RuntimeError, match="'offset2' must be not negative, but received -1"):
        torch_npu.npu_stride_add(make(1, 16), make(1, 16), 0, -1, 1)
    with pytest.raises(RuntimeError, match="'other' must be of the dtype of 'self'"):
        torch_npu.npu_stride_add(make(1, 16), make(1, 16).half(), 0, 0, 1)
    with pytest.raises(RuntimeError, match="'offset1' must be at most 1 for 1 blocks.*received 2"):
        torch_npu.npu_stride_add(make(1, 20), make(1, 16), 2, 0, 1)
    with pytest.raises(RuntimeError, match=r"'other' must be of shape \(2, \*, 3\).*\(2, 16, 1\)"):
        torch_npu.npu_stride_add(make(2, 16, 3), make(2, 16, 1), 0, 0, 1)
    with pytest.raises(RuntimeError, match="'self' must be of dtype .*bfloat16"):
        torch_npu.npu_stride_add(make(1, 16).bfloat16(), make(1, 16).bfloat16(), 0, 0, 1)


def test_bfloat16_on_ascend950():
    with as_chip("Ascend950"):
        x = make(1, 16, dtype=torch.bfloat16)
        assert torch.equal(torch_npu.npu_stride_add(x, x, 0, 0, 1).cpu(), 2 * x.cpu())
