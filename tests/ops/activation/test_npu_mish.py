"""npu_mish and its gradient against the scalar formula."""

import math

import pytest
import torch

import torch_npu
from tests.ops.activation._elementwise import (
    SHAPES,
    by_number,
    check_extremes,
    check_strided,
    check_values,
)
from tests.ops.families import on
from tests.ops.support import assert_accurate, gradcheck, make


def scalar(x):
    return x * math.tanh(math.log1p(math.exp(x)))


def plain(x):
    return x * torch.tanh(torch.log1p(torch.exp(x)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(shape, dtype):
    check_values(torch_npu.npu_mish, scalar, plain, shape, dtype)


def test_strided_and_extremes():
    check_strided(torch_npu.npu_mish, scalar, plain)
    check_extremes(torch_npu.npu_mish)


def test_large_inputs_pass():
    x = make(30, low=20, high=100)
    assert torch.equal(torch_npu.npu_mish(x).cpu(), x.cpu())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_backward_operator(dtype):
    grad, x = make(5, 7, dtype=dtype), make(7, 5, dtype=dtype, low=-5, high=5).t()

    def slope(g, x):
        t = math.tanh(math.log1p(math.exp(x)))
        return g * (t + x * (1 - t * t) / (1 + math.exp(-x)))

    g, v = grad.cpu(), x.cpu()
    t = torch.tanh(torch.log1p(torch.exp(v)))
    got = torch_npu.npu_mish_backward(grad, x)
    assert got.dtype == dtype
    want = by_number(slope, grad, x)
    assert_accurate(got, want, g * (t + v * torch.sigmoid(v) * (1 - t * t)))


def test_gradients():
    x = make(3, 7, dtype=torch.float64, low=-4, high=4, requires_grad=True)
    gradcheck(torch_npu.npu_mish, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32])
def test_bad_dtype(dtype):
    text = f"npu_mish: argument 'self' must be of dtype torch.float16 or torch.float32.*{dtype}"
    with on("310P"), pytest.raises(RuntimeError, match=text):
        torch_npu.npu_mish(make(3, dtype=dtype, low=0, high=3))


def test_backward_bad_shape():
    with pytest.raises(
        RuntimeError, match=r"npu_mish_backward: argument 'grad' must be of shape \(3\).*\(2,\)"
    ):
        torch_npu.npu_mish_backward(make(2), make(3))


def test_backward_mixed_dtypes():
    with pytest.raises(RuntimeError, match="argument 'grad' must be of the dtype of 'input'"):
        torch_npu.npu_mish_backward(make(3, dtype=torch.float16), make(3))
