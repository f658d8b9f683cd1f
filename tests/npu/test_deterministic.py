"""The deterministic level, and determinism for a stretch of a model."""

import warnings

import pytest
import torch

import torch_npu  # noqa: F401
from softnpu import settings


@pytest.fixture(autouse=True)
def restore():
    yield
    torch.use_deterministic_algorithms(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.npu.set_deterministic_level(0)


def test_levels_switch_torch():
    with pytest.warns(UserWarning, match="use_deterministic_algorithms to True"):
        torch.npu.set_deterministic_level(1)
    assert torch.are_deterministic_algorithms_enabled()
    torch.npu.set_deterministic_level(2)
    assert torch.npu._get_deterministic_level() == 2
    with pytest.warns(UserWarning, match="to False"):
        torch.npu.set_deterministic_level(0)
    assert not torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.npu._get_deterministic_level() == 1


def test_wrong_levels():
    with pytest.raises(RuntimeError, match="level must be 0, 1, 2 or 3, but received 4"):
        torch.npu.set_deterministic_level(4)
    with pytest.raises(TypeError, match="level must be an int"):
        torch.npu.set_deterministic_level(True)
    with pytest.raises(
        RuntimeError, match=rf"needs CANN 9\.2\.0, but this is {settings.current().cann_version}"
    ):
        torch.npu.set_deterministic_level(3)
    with settings.override(cann_version="9.2.0"), pytest.warns(UserWarning, match="to True"):
        torch.npu.set_deterministic_level(3)
    assert torch.npu._get_deterministic_level() == 3


class Notes(torch.autograd.Function):
    """Notes whether algorithms are deterministic when it runs."""

    @staticmethod
    def forward(ctx, x, notes):
        ctx.notes = notes
        notes.append(("forward", torch.are_deterministic_algorithms_enabled()))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.notes.append(("backward", torch.are_deterministic_algorithms_enabled()))
        return gradient, None


def test_a_stretch_is_deterministic_forward_and_backward():
    x = torch.ones(3, device="npu", requires_grad=True)
    before, inside, after = [], [], []
    y = Notes.apply(x, before)
    y = torch.npu.enable_deterministic_with_backward(y)
    y = Notes.apply(y, inside)
    y = torch.npu.disable_deterministic_with_backward(y)
    y = Notes.apply(y, after)
    y.sum().backward()
    assert before == [("forward", False), ("backward", False)]
    assert inside == [("forward", True), ("backward", True)]
    assert after == [("forward", False), ("backward", False)]
    assert torch.equal(x.grad.cpu(), torch.ones(3))


@pytest.mark.parametrize("name", ["enable", "disable"])
def test_only_tensors(name):
    function = getattr(torch.npu, f"{name}_deterministic_with_backward")
    with pytest.raises(TypeError, match="tensor must be a Tensor, but received int"):
        function(1)
