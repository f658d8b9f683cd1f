"""npu_silu, npu_silu_ and npu_silu_backward against the scalar formula."""

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
    return x / (1 + math.exp(-x))


def plain(x):
    return x * torch.sigmoid(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(shape, dtype):
    check_values(torch_npu.npu_silu, scalar, plain, shape, dtype)


def test_strided_and_extremes():
    check_strided(torch_npu.npu_silu, scalar, plain)
    check_extremes(torch_npu.npu_silu)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_in_place(shape, dtype):
    x = make(*shape, dtype=dtype, low=-6, high=6)
    before, address, version = x.cpu(), x.data_ptr(), x._version
    y = torch_npu.npu_silu_(x)
    assert y is x or (y.data_ptr() == address and y.shape == x.shape)
    assert x.data_ptr() == address and x._version > version
    assert_accurate(x, by_number(scalar, before), plain(before))


def test_in_place_on_a_view():
    base = make(4, 6, low=-3, high=3)
    before = base.cpu()
    torch_npu.npu_silu_(base[:, ::2])
    assert torch.equal(base[:, 1::2].cpu(), before[:, 1::2])
    assert_accurate(base[:, ::2], by_number(scalar, before[:, ::2]), plain(before[:, ::2]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_backward_operator_uses_the_result(dtype):
    grad, x, y = (make(5, n, dtype=dtype, low=-2, high=2)[:, :7] for n in (7, 8, 9))

    def slope(g, x, y):
        return g * (y + (1 - y) / (1 + math.exp(-x)))

    g, a, b = grad.cpu(), x.cpu(), y.cpu()
    got = torch_npu.npu_silu_backward(grad, x, y)
    assert got.dtype == dtype
    assert_accurate(got, by_number(slope, grad, x, y), g * (b + torch.sigmoid(a) * (1 - b)))


def test_gradients():
    x = make(3, 7, dtype=torch.float64, low=-4, high=4, requires_grad=True)
    gradcheck(torch_npu.npu_silu, x)


@pytest.mark.parametrize("operator", ["npu_silu", "npu_silu_"])
def test_bad_dtype(operator):
    text = f"{operator}: argument 'self' must be of dtype .*bfloat16"
    with on("310P"), pytest.raises(RuntimeError, match=text):
        getattr(torch_npu, operator)(make(3, dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match=f"{operator}: argument 'self' must be of dtype .*int32"):
        getattr(torch_npu, operator)(make(3, dtype=torch.int32, low=0, high=3))


def test_backward_bad_shape():
    with pytest.raises(
        RuntimeError, match=r"npu_silu_backward: argument 'x1' must be of shape \(3\).*\(2,\)"
    ):
        torch_npu.npu_silu_backward(make(3), make(3), make(2))


def test_backward_mixed_dtypes():
    with pytest.raises(RuntimeError, match="argument 'x0' must be of the dtype of 'grad_output'"):
        torch_npu.npu_silu_backward(make(3), make(3, dtype=torch.float16), make(3))
