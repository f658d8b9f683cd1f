"""npu_pad against a loop."""

import itertools

import pytest
import torch

import torch_npu
from tests.ops.support import make


def reference(x, paddings):
    ends = [*paddings, *[0] * (2 * x.dim() - len(paddings))]
    shape = [s + ends[2 * i] + ends[2 * i + 1] for i, s in enumerate(x.shape)]
    out = torch.zeros(shape, dtype=x.dtype)
    for place in itertools.product(*map(range, x.shape)):
        out[tuple(p + ends[2 * i] for i, p in enumerate(place))] = x[place]
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32, torch.int8])
@pytest.mark.parametrize(
    "shape,paddings",
    [
        ((1, 4), (1, 1, 1, 1)),
        ((2, 3), (0, 2)),
        ((2, 3), (1,)),
        ((2, 2, 2), (1, 0, 0, 3, 2, 2)),
        ((3,), ()),
        ((0, 2), (1, 1)),
    ],
)
def test_values(dtype, shape, paddings):
    x = make(*shape, dtype=dtype, low=1, high=9)
    out = torch_npu.npu_pad(x, paddings)
    assert torch.equal(out.cpu(), reference(x.cpu(), paddings)) and out.dtype == dtype


def test_non_contiguous():
    x = make(3, 2).t()
    assert torch.equal(torch_npu.npu_pad(x, [1, 2, 0, 1]).cpu(), reference(x.cpu(), [1, 2, 0, 1]))


def test_paddings_left_over_count_for_nothing():
    x = make(3)
    assert torch.equal(torch_npu.npu_pad(x, [1, 1, 7, 5]).cpu(), reference(x.cpu(), [1, 1]))


@pytest.mark.parametrize("paddings", [[-1, 0], [0, -2]])
def test_negative_padding(paddings):
    with pytest.raises(
        RuntimeError, match=r"argument 'paddings' must be non-negative, but received \[.*-"
    ):
        torch_npu.npu_pad(make(3), paddings)
