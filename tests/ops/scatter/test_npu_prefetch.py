"""npu_prefetch: nothing changes, wrong sizes raise."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8, torch.bool])
@pytest.mark.parametrize("dependency", [False, True])
def test_leaves_the_tensor(dtype, dependency):
    x = make(8, 8, dtype=dtype, high=9)
    before = x.cpu().clone()
    for size, offset in ((1, 0), (10, 63), (10**9, 0)):
        other = make(2) if dependency else None
        assert torch_npu.npu_prefetch(x, other, size, offset) is None
    assert torch.equal(x.cpu(), before)


def test_strided():
    x = make(8, 8).t()
    assert torch_npu.npu_prefetch(x, None, 8, offset=255) is None


@pytest.mark.parametrize("size", [0, -1])
def test_bad_size(size):
    with pytest.raises(
        RuntimeError,
        match=f"npu_prefetch: argument 'max_size' must be positive, but received {size}",
    ):
        torch_npu.npu_prefetch(make(8), None, size)


def test_negative_offset():
    with pytest.raises(
        RuntimeError, match="argument 'offset' must be 0 or positive, but received -1"
    ):
        torch_npu.npu_prefetch(make(8), None, 8, -1)


@pytest.mark.parametrize("offset", [128, 1000])
def test_offset_past_the_end(offset):
    message = (
        f"argument 'offset' must be less than the size of 'self', 128 bytes, but received {offset}"
    )
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_prefetch(make(8, 8, dtype=torch.float16), None, 8, offset)


def test_dependency_on_the_host():
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch_npu.npu_prefetch(make(8), torch.zeros(2), 8)
