"""npu_fast_gelu and its gradient against the scalar formula."""

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
    return x / (1 + math.exp(-1.702 * x))


def plain(x):
    return x / (1 + torch.exp(-1.702 * x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(shape, dtype):
    check_values(torch_npu.npu_fast_gelu, scalar, plain, shape, dtype)


def test_strided():
    check_strided(torch_npu.npu_fast_gelu, scalar, plain)


def test_extremes():
    check_extremes(torch_npu.npu_fast_gelu)


def test_is_not_gelu():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], device=make(1).device)
    want = torch.tensor([0.845796, 1.935657, 2.981936, 3.995589])
    torch.testing.assert_close(torch_npu.npu_fast_gelu(x).cpu(), want, atol=1e-5, rtol=0)
    gelu = torch.nn.functional.gelu(x.cpu())
    assert (torch_npu.npu_fast_gelu(x).cpu() - gelu).abs().max() > 0.004


def test_old_chips_compute_the_same():
    x = make(64, low=-6, high=6)
    with on("910A"):
        y = torch_npu.npu_fast_gelu(x)

    def form(x):
        return x / (1 + math.exp(-1.702 * abs(x))) * math.exp(0.851 * (x - abs(x)))

    assert_accurate(y, by_number(form, x), plain(x.cpu()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_backward_operator(dtype):
    grad, x = make(5, 7, dtype=dtype), make(7, 5, dtype=dtype, low=-5, high=5).t()

    def slope(g, x):
        s = 1 / (1 + math.exp(-1.702 * x))
        return g * (s + 1.702 * x * s * (1 - s))

    g, v = grad.cpu(), x.cpu()
    s = torch.sigmoid(1.702 * v)
    got = torch_npu.npu_fast_gelu_backward(grad, x)
    assert got.dtype == dtype
    assert_accurate(got, by_number(slope, grad, x), g * (s + 1.702 * v * s * (1 - s)))


def test_gradients():
    x = make(3, 7, dtype=torch.float64, low=-4, high=4, requires_grad=True)
    gradcheck(torch_npu.npu_fast_gelu, x)


def test_bad_dtype():
    with pytest.raises(
        RuntimeError, match="npu_fast_gelu: argument 'self' must be of dtype .*int32"
    ):
        torch_npu.npu_fast_gelu(make(3, dtype=torch.int32, high=9))


def test_no_bfloat16_on_old_chips():
    with (
        on("910A"),
        pytest.raises(RuntimeError, match="'self' must be of dtype torch.float16 or torch.float32"),
    ):
        torch_npu.npu_fast_gelu(make(3, dtype=torch.bfloat16))


def test_too_many_dimensions():
    with pytest.raises(RuntimeError, match="'self' must be a tensor of 0 to 8 dimensions"):
        torch_npu.npu_fast_gelu(make(*(1 for _ in range(9))))


def test_backward_shape():
    with pytest.raises(
        RuntimeError,
        match=r"npu_fast_gelu_backward: argument 'grad' must be of shape \(3\).*\(2,\)",
    ):
        torch_npu.npu_fast_gelu_backward(make(2), make(3))
