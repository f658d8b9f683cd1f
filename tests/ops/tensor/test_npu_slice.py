"""npu_slice against host slicing, element by element."""

import itertools

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.int32, torch.uint8, torch.int8, torch.int16, torch.int64],
)
@pytest.mark.parametrize(
    "shape,offsets,size",
    [
        ((2, 5), (0, 0), (2, 2)),
        ((4, 3, 5), (1, 0, 2), (2, 3, 3)),
        ((4,), (4,), (0,)),
        ((3,), (1,), (1,)),
    ],
)
def test_values(dtype, shape, offsets, size):
    x = make(*shape, dtype=dtype, low=0, high=99)
    out = torch_npu.npu_slice(x, offsets, size)
    assert out.shape == size and out.dtype == dtype and out.is_contiguous()
    for place in itertools.product(*map(range, size)):
        assert out[place] == x[tuple(o + p for o, p in zip(offsets, place, strict=True))]


def test_non_contiguous_and_out():
    x = make(4, 5).t()
    out = torch.empty(0, device=x.device)
    assert torch_npu.npu_slice(x, [1, 1], [3, 2], out=out) is out
    assert torch.equal(out.cpu(), x.cpu()[1:4, 1:3])


def test_no_gradient():
    x = make(3, requires_grad=True)
    assert not torch_npu.npu_slice(x.detach(), [0], [2]).requires_grad


@pytest.mark.parametrize(
    "offsets,size,message",
    [
        ([0], [1, 1], "'offsets' must be 2 numbers"),
        ([0, 0], [1], "'size' must be 2 numbers"),
        ([0, -1], [1, 1], r"'offsets' must be within \[0, 3\], but received \[0, -1\]"),
        ([0, 2], [2, 2], r"'size' must be within \[0, 1\] at offset 2, but received \[2, 2\]"),
        ([0, 0], [2, -1], r"'size' must be within \[0, 3\] at offset 0, but received \[2, -1\]"),
    ],
)
def test_bad_arguments(offsets, size, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_slice(make(2, 3), offsets, size)
