"""npu_swiglu and its gradient against the formula, element by element."""

import math

import pytest
import torch

import torch_npu
from tests.ops.activation._elementwise import by_number
from tests.ops.families import on
from tests.ops.support import assert_accurate, gradcheck, make

CASES = [((4, 3, 32), -1), ((2, 6, 5, 3), 1), ((8, 5), 0), ((2, 4, 3), -2), ((1, 2), -1), ((2,), 0)]


def halves(x, dim):
    size = x.shape[dim] // 2
    return x.narrow(dim, 0, size), x.narrow(dim, size, size)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,dim", CASES)
def test_forward(shape, dim, dtype):
    x = make(*shape, dtype=dtype, low=-4, high=4)
    y = torch_npu.npu_swiglu(x, dim)
    a, b = halves(x.cpu(), dim)
    assert y.dtype == dtype and y.is_contiguous()
    want = by_number(lambda a, b: a / (1 + math.exp(-a)) * b, a, b)
    assert_accurate(y, want, torch.nn.functional.silu(a) * b)


def test_default_dim_is_the_last():
    x = make(4, 6)
    assert torch.equal(torch_npu.npu_swiglu(x), torch_npu.npu_swiglu(x, dim=1))


def test_non_contiguous():
    x = make(8, 6, 4).transpose(0, 2)
    a, b = halves(x.cpu(), -1)
    want = by_number(lambda a, b: a / (1 + math.exp(-a)) * b, a, b)
    y = torch_npu.npu_swiglu(x)
    assert y.is_contiguous()
    assert_accurate(y, want, want.float())


def test_empty():
    assert torch_npu.npu_swiglu(make(0, 8)).shape == (0, 4)
    assert torch_npu.npu_swiglu(make(3, 0)).shape == (3, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,dim", [((4, 3, 32), -1), ((2, 6, 5), 1)])
def test_backward_operator(shape, dim, dtype):
    x = make(*shape, dtype=dtype, low=-4, high=4)
    a, b = halves(x.cpu(), dim)
    grad = make(*a.shape, dtype=dtype)
    g = grad.cpu()

    def left(g, a, b):
        s = 1 / (1 + math.exp(-a))
        return g * b * (s + a * s * (1 - s))

    got = torch_npu.npu_swiglu_backward(grad, x, dim)
    want = torch.cat(
        (by_number(left, g, a, b), by_number(lambda g, a: g * a / (1 + math.exp(-a)), g, a)), dim
    )
    s = torch.sigmoid(a)
    plain = torch.cat((g * b * (s + a * s * (1 - s)), g * (a * s)), dim)
    assert got.dtype == dtype and got.shape == x.shape
    assert_accurate(got, want, plain)


@pytest.mark.parametrize("dim", [-1, 0])
def test_gradients(dim):
    x = make(4, 6, dtype=torch.float64, low=-3, high=3, requires_grad=True)
    gradcheck(lambda x: torch_npu.npu_swiglu(x, dim), x)


def test_odd_size():
    with pytest.raises(
        RuntimeError,
        match=r"npu_swiglu: argument 'self' must be of even size in dimension 1.*\(4, 7\)",
    ):
        torch_npu.npu_swiglu(make(4, 7), 1)


def test_dim_out_of_range():
    with pytest.raises(RuntimeError, match=r"argument 'dim' must be in \[-2, 1\], but received 2"):
        torch_npu.npu_swiglu(make(4, 8), 2)


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="argument 'self' must be of dtype .*int8"):
        torch_npu.npu_swiglu(make(4, 8, dtype=torch.int8, high=9))


def test_no_bfloat16_on_old_chips():
    with on("310P"), pytest.raises(RuntimeError, match="'self' must be of dtype .*bfloat16"):
        torch_npu.npu_swiglu(make(4, 8, dtype=torch.bfloat16))


def test_scalar_input():
    with pytest.raises(RuntimeError, match="argument 'self' must be a tensor of 1 to 8 dimensions"):
        torch_npu.npu_swiglu(make())


def test_backward_bad_grad_shape():
    with pytest.raises(
        RuntimeError,
        match=r"npu_swiglu_backward: argument 'grad_output' must be of shape \(4, 4\).*\(4, 8\)",
    ):
        torch_npu.npu_swiglu_backward(make(4, 8), make(4, 8))
