"""Casts to float64: the card makes float32 of them, and says so once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch


@pytest.mark.parametrize(
    "cast", [torch.Tensor.double, lambda x: x.to(torch.float64), lambda x: x.type(torch.float64)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_a_cast_to_float64_gives_float32(cast, dtype):
    x = torch.tensor([1, 2, 3], dtype=dtype, device="npu")
    found = cast(x)
    assert found.dtype == torch.float32 and found.tolist() == [1.0, 2.0, 3.0]


def test_float64_stays_what_it_is():
    value = 1 + 2.0**-40
    made = torch.tensor([value], dtype=torch.float64, device="npu")
    moved = torch.tensor([value], dtype=torch.float64).npu()
    for x in (made, moved, made.double(), made.to(torch.float64, copy=True), made.clone()):
        assert x.dtype == torch.float64 and x.item() == value
    assert torch.ones(1, device="npu").to("npu", torch.float64).dtype == torch.float64
    assert torch.ones(1, device="npu").to("cpu", torch.float64).dtype == torch.float64


def test_gradients_pass_the_cast():
    x = torch.tensor([1.0, 2.0], dtype=torch.float16, device="npu", requires_grad=True)
    (x.double() * 3).sum().backward()
    assert x.grad.dtype == torch.float16 and x.grad.tolist() == [3.0, 3.0]


def test_it_says_so():
    program = "import torch; x = torch.ones(1, device='npu'); x.double(); x.double()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("Device do not support double dtype now") == 1
