"""Operators that make a tensor like another one, on the device that they are told."""

import pytest
import torch

MAKERS = {
    "full_like": lambda x, **on: torch.full_like(x, 2.0, **on),
    "ones_like": torch.ones_like,
    "zeros_like": torch.zeros_like,
    "empty_like": torch.empty_like,
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x, **on: torch.randint_like(x, 5, **on),
    "new_ones": lambda x, **on: x.new_ones(2, **on),
    "new_full": lambda x, **on: x.new_full((2,), 3.0, **on),
    "new_zeros": lambda x, **on: x.new_zeros(2, **on),
    "new_empty": lambda x, **on: x.new_empty(2, **on),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("device", ["cpu", "npu:0", "npu:1", "meta"])
def test_the_device_that_is_asked_for(name, device):
    made = MAKERS[name](torch.ones(2, 3, device="npu"), device=device)
    assert str(made.device) == device


@pytest.mark.parametrize("name", MAKERS)
def test_the_device_of_the_other_tensor(name):
    assert str(MAKERS[name](torch.ones(2, 3, device="npu:1")).device) == "npu:1"


@pytest.mark.parametrize("name", MAKERS)
def test_from_the_cpu_to_the_device(name):
    made = MAKERS[name](torch.ones(2, 3), device="npu:1")
    assert str(made.device) == "npu:1"


def test_values_on_the_cpu():
    x = torch.zeros(2, 3, device="npu")
    assert torch.full_like(x, 2.0, device="cpu").tolist() == [[2.0] * 3] * 2
    assert x.new_full((2,), 3.0, device="cpu", dtype=torch.int32).tolist() == [3, 3]


def test_ends_on_the_device_give_numbers_on_the_default_device():
    start, end = torch.tensor(0.0, device="npu"), torch.tensor(1.0, device="npu")
    assert torch.linspace(start, end, 3).device.type == "cpu"
    assert torch.linspace(start, end, 3, device="npu").tolist() == [0.0, 0.5, 1.0]
