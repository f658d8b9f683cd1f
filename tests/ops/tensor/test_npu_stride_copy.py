"""npu_stride_copy and its out form against as_strided on the host."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize(
    "shape,stride,offset", [([2, 3], [6, 2], 1), ([3, 3], [1, 2], 0), ([4], [0], 5), ([], [], 7)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool])
def test_copy(shape, stride, offset, dtype):
    x = make(4, 6, dtype=dtype, high=9)
    want = x.cpu().as_strided(shape, stride, offset)
    y = torch_npu.npu_stride_copy(x, shape, stride, offset)
    assert torch.equal(y.cpu(), want) and y.is_contiguous()
    assert y.data_ptr() != x.data_ptr()
    out = torch.empty_like(y)
    torch.ops.npu.npu_stride_copy.out(x, shape, stride, offset, out=out)
    assert torch.equal(out.cpu(), want)


def test_refusals():
    with pytest.raises(RuntimeError, match=r"'stride' must be of 2 numbers, as 'shape'.*\[1\]"):
        torch_npu.npu_stride_copy(make(4, 6), [2, 2], [1], 0)
    with pytest.raises(RuntimeError, match="'storage_offset' must be not negative"):
        torch_npu.npu_stride_copy(make(4, 6), [2], [1], -1)
