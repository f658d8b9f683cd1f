"""torch.nn.functional.one_hot on the device: the dtypes and the leniency of the card."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import one_hot

from tests.ops.families import on


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("count", [-1, 5, 7])
def test_classes(dtype, count):
    classes = torch.tensor([[0, 4], [2, 1]], dtype=dtype)
    found = one_hot(classes.npu(), count)
    depth = 5 if count == -1 else count
    assert found.shape == (2, 2, depth) and found.dtype == dtype
    for row in range(2):
        for column in range(2):
            want = [int(k == classes[row, column]) for k in range(depth)]
            assert found[row, column].tolist() == want


def test_a_class_outside_has_a_row_of_zeros():
    found = one_hot(torch.tensor([1, -1, 3]).npu(), 3)
    assert found.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_empty():
    assert one_hot(torch.zeros(0, dtype=torch.int64).npu(), 3).shape == (0, 3)


def test_fake_tensors():
    with FakeTensorMode():
        found = one_hot(torch.empty(3, dtype=torch.int32, device="npu"), 4)
        assert found.shape == (3, 4) and found.device.type == "npu"


@pytest.mark.family("A2")
def test_refusals():
    classes = torch.tensor([1, 2]).npu()
    with pytest.raises(
        RuntimeError, match="one_hot: argument 'num_classes' must be at least -1.*-2"
    ):
        one_hot(classes, -2)
    with pytest.raises(RuntimeError, match="'num_classes' must be positive for an empty tensor"):
        one_hot(classes[:0])
    with pytest.raises(RuntimeError, match="'self' must be of dtype .*uint8"):
        one_hot(classes.to(torch.uint8), 3)
    with on("A5"):
        assert one_hot(classes.to(torch.uint8), 3).dtype == torch.uint8
