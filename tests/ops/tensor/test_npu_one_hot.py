"""npu_one_hot against a loop."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


def reference(classes, axis, depth, on_value, off_value):
    axis = classes.dim() if axis == -1 else axis
    shape = (*classes.shape[:axis], depth, *classes.shape[axis:])
    out = torch.empty(shape)
    for place in itertools.product(*map(range, shape)):
        rest = place[:axis] + place[axis + 1 :]
        out[place] = on_value if classes[rest] == place[axis] else off_value
    return out


@pytest.mark.parametrize("shape", [(4,), (2, 3), (), (0, 2)])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64, torch.uint8])
def test_values(shape, kind):
    classes = make(*shape, dtype=kind, low=0, high=7)
    for axis in range(-1, len(shape) + 1):
        out = torch_npu.npu_one_hot(classes, axis, 5, 2.5, -0.5)
        assert out.dtype == torch.float32
        assert torch.equal(out.cpu(), reference(classes.cpu(), axis, 5, 2.5, -0.5))


def test_classes_outside_have_no_value():
    classes = torch.tensor([4, 0, -2, 7], dtype=torch.int32).to(make(1).device)
    out = torch_npu.npu_one_hot(classes, depth=4)
    assert out.tolist() == [[0] * 4, [1, 0, 0, 0], [0] * 4, [0] * 4]


def test_types_and_auto_depth_on_950():
    classes = torch.tensor([2, 0]).to(make(1).device)
    with on("A5"):
        whole = torch_npu.npu_one_hot(classes, depth=-1)
        floats = torch_npu.npu_one_hot(classes, depth=4, on_value=1.0, off_value=0.0)
    assert whole.dtype == torch.int64 and whole.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert floats.dtype == torch.float32 and floats.shape == (2, 4)


@pytest.mark.family("A2")
def test_bad_arguments():
    classes = make(3, dtype=torch.int64, low=0, high=3)
    with pytest.raises(
        RuntimeError, match=r"'num_classes' must be within \[-1, 1\], but received 2"
    ):
        torch_npu.npu_one_hot(classes, 2)
    with pytest.raises(RuntimeError, match="'depth' must be at least 0, but received -1"):
        torch_npu.npu_one_hot(classes, depth=-1)
    with (
        on("A5"),
        pytest.raises(
            RuntimeError, match=r"'off_value' must be of the type of 'on_value' \(float\)"
        ),
    ):
        torch_npu.npu_one_hot(classes, depth=3, on_value=1.0, off_value=0)


def test_auto_depth_needs_data():
    device = make(1).device
    with on("A5"), FakeTensorMode():
        classes = torch.empty(3, dtype=torch.int64, device=device)
        with pytest.raises(RuntimeError, match="'depth' must be given for a tensor without data"):
            torch_npu.npu_one_hot(classes, depth=-1)


def test_ascend950_refuses():
    with on("A5"):
        empty = torch.zeros(0, dtype=torch.int64).npu()
        assert torch_npu.npu_one_hot(empty, depth=3).shape == (0, 3)
        with pytest.raises(RuntimeError, match="'depth' must be positive for an empty tensor.*0"):
            torch_npu.npu_one_hot(empty, depth=0)
        with pytest.raises(RuntimeError, match="'on_value' must be a number of float32"):
            torch_npu.npu_one_hot(make(3, dtype=torch.int64, low=0), -1, 2, 1e300, 0.0)
