"""Compiled graphs round where eager operators do: the card's graphs run operator by operator, and each writes its results."""

import pytest
import torch
import torch.nn.functional as F

import torch_npu
from tests.torchair.support import assert_same_as_eager, randn

PROGRAMS = {
    "chain": lambda a, b, c: (a + b) * c - a * c,
    "cast": lambda a, b, c: (a * b).float() + 1,
    "there and back": lambda a, b, c: a.float().to(a.dtype) * b.float(),
    "softmax": lambda a, b, c: torch.softmax(a * b, -1) * c,
    "silu": lambda a, b, c: F.silu(a) * b + c,
    "gelu": lambda a, b, c: F.gelu(a * b) * c,
    "layer_norm": lambda a, b, c: F.layer_norm(a * b, (128,), c[0], c[1]) * b,
    "mean": lambda a, b, c: (a * b).mean(-1, keepdim=True) * c,
    "product": lambda a, b, c: F.relu(a @ b.T) * 0.3 + 1,
    "where": lambda a, b, c: torch.where(a * b > c, a * b, c * 0.1),
    "npu_rms_norm": lambda a, b, c: torch_npu.npu_rms_norm(a * b, c[0])[0] * b,
    "npu_swiglu": lambda a, b, c: torch_npu.npu_swiglu(a * b) * c[:, :64],
    "npu_add_rms_norm": lambda a, b, c: torch_npu.npu_add_rms_norm(a * b, c, b[0])[2] * 3.3,
}


#: what the order of a sum (on some processors alone) or another exponential may change in the last place
ALMOST = {"softmax", "gelu", "layer_norm", "npu_rms_norm", "npu_add_rms_norm"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bits_of_eager(name, dtype):
    given = [randn(64, 128 * i, dtype=dtype)[:, :128] for i in (1, 2, 3)]
    tolerance = 2 * torch.finfo(dtype).eps if name in ALMOST else 0
    assert_same_as_eager(PROGRAMS[name], *given, tolerance=tolerance)


@pytest.mark.parametrize("name", ["chain", "silu", "npu_swiglu"])
def test_the_bits_of_eager_gradients(name):
    given = [randn(64, 128, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    assert_same_as_eager(PROGRAMS[name], *given, tolerance=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_layer_norm(dtype):
    """The statistics that the forward graph keeps are what the backward graph reads."""

    def program(x, weight, bias):
        return F.layer_norm(x, (128,), weight, bias) * 1.5

    given = [randn(64, 128, dtype=dtype), randn(128, dtype=dtype), randn(128, dtype=dtype)]
    leaves = [one.requires_grad_() for one in given]
    factors = randn(64, 128, dtype=dtype)
    found = torch.autograd.grad(torch.compile(program, backend="npu")(*leaves), leaves, factors)
    exact = [one.detach().cpu().double().requires_grad_() for one in given]
    expected = torch.autograd.grad(program(*exact), exact, factors.cpu().double())
    for one, true in zip(found, expected, strict=True):
        error = (one.cpu().double() - true).abs().max()
        assert error < 4 * torch.finfo(dtype).eps * true.abs().max()
