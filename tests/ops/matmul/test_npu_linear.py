"""npu_linear and its gradient against products in fp64 and int64."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.support import assert_accurate, gradcheck, make


def reference(x, weight, bias=None):
    y = (
        torch.stack([(row * weight).sum(-1) for row in x])
        if len(x)
        else x.new_zeros(0, len(weight))
    )
    return y if bias is None else y + bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("m,k,n", [(5, 33, 7), (1, 1, 1), (0, 8, 3), (4, 300, 2)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_forward(dtype, m, k, n, with_bias):
    x, weight = make(m, k, dtype=dtype), make(n, k, dtype=dtype, seed=1)
    bias = make(n, dtype=dtype) if with_bias else None
    y = torch_npu.npu_linear(x, weight, bias)
    args = [t.cpu() for t in (x, weight)] + ([bias.cpu()] if with_bias else [])
    assert y.dtype == dtype and y.shape == (m, n)
    plain = torch.nn.functional.linear(*args)
    assert_accurate(y, reference(*(a.double() for a in args)), plain)


def test_float32_bias_of_half_input():
    x, weight, bias = make(3, 8, dtype=torch.float16), make(4, 8, dtype=torch.float16), make(4)
    y = torch_npu.npu_linear(x, weight, bias)
    want = reference(x.cpu().double(), weight.cpu().double(), bias.cpu().double())
    assert y.dtype == torch.float16
    assert_accurate(y, want, want.half())


@pytest.mark.parametrize("dtype,limit", [(torch.int32, 1000), (torch.int8, 3)])
def test_integers_are_exact(dtype, limit):
    x = make(4, 40, dtype=dtype, low=-limit, high=limit)
    weight = make(3, 40, dtype=dtype, low=-limit, high=limit, seed=2)
    bias = make(3, dtype=torch.int32, low=-9, high=9)
    y = torch_npu.npu_linear(x, weight, bias)
    want = reference(x.cpu().long(), weight.cpu().long(), bias.cpu().long())
    assert y.dtype == dtype
    assert torch.equal(y.cpu(), want.to(dtype))


def test_non_contiguous():
    x, weight = make(8, 6).t(), make(8, 5).t()
    y = torch_npu.npu_linear(x, weight)
    want = reference(x.cpu().double(), weight.cpu().double())
    assert_accurate(y, want, want.float())


def test_gradients():
    x = make(4, 5, dtype=torch.float64, requires_grad=True)
    weight = make(3, 5, dtype=torch.float64, requires_grad=True)
    bias = make(3, dtype=torch.float64, requires_grad=True)
    gradcheck(torch_npu.npu_linear, x, weight, bias)
    gradcheck(torch_npu.npu_linear, x, weight)


def test_named_backward():
    grad, x, weight = make(4, 3), make(4, 5, seed=1), make(3, 5, seed=2)
    dx, dw = torch.ops.npu.npu_linear_backward(grad, x, weight)
    want = grad.cpu().double() @ weight.cpu().double()
    assert_accurate(dx, want, want.float())
    want = grad.cpu().double().t() @ x.cpu().double()
    assert_accurate(dw, want, want.float())


def test_half_gradients_keep_their_dtypes():
    x = make(4, 5, dtype=torch.float16, requires_grad=True)
    weight = make(3, 5, dtype=torch.float16, requires_grad=True)
    bias = make(3, requires_grad=True)
    torch_npu.npu_linear(x, weight, bias).sum().backward()
    assert (x.grad.dtype, weight.grad.dtype, bias.grad.dtype) == (torch.float16,) * 2 + (
        torch.float32,
    )
    assert torch.equal(bias.grad.cpu(), torch.full((3,), 4.0))


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="npu_linear: argument 'input' must be of dtype .*int64"):
        torch_npu.npu_linear(make(2, 4, dtype=torch.int64, high=9), make(2, 4))


def test_bfloat16_needs_a2():
    x = make(2, 4, dtype=torch.bfloat16)
    with (
        as_chip("Ascend910A"),
        pytest.raises(RuntimeError, match="'input' must be of dtype"),
    ):
        torch_npu.npu_linear(x, x)


def test_weight_of_another_dtype():
    with pytest.raises(RuntimeError, match="'weight' must be of the dtype of 'input' .*float16"):
        torch_npu.npu_linear(make(2, 4), make(2, 4, dtype=torch.float16))


def test_bad_depth():
    with pytest.raises(RuntimeError, match=r"'weight' must be of shape \(\*, 4\).*\(2, 5\)"):
        torch_npu.npu_linear(make(2, 4), make(2, 5))


def test_bad_bias():
    with pytest.raises(
        RuntimeError, match=r"'bias' must be of a shape that broadcasts to \(2, 2\).*\(3,\)"
    ):
        torch_npu.npu_linear(make(2, 4), make(2, 4), make(3))
    with pytest.raises(RuntimeError, match="'bias' must be a floating tensor like 'input'.*int32"):
        torch_npu.npu_linear(make(2, 4), make(2, 4), make(2, dtype=torch.int32, high=3))


@pytest.mark.parametrize("shape", [(1, 4), (3, 1), (3, 4), (1,)])
def test_a_bias_is_broadcast(shape):
    x, weight, bias = make(3, 8), make(4, 8), make(*shape, requires_grad=True)
    y = torch_npu.npu_linear(x, weight, bias)
    want = x.cpu().double() @ weight.cpu().double().T + bias.detach().cpu().double()
    torch.testing.assert_close(y.detach().cpu().double(), want, rtol=1e-5, atol=1e-5)
    grad = make(3, 4, seed=7)
    y.backward(grad)
    torch.testing.assert_close(bias.grad.cpu(), grad.cpu().sum_to_size(shape), rtol=1e-5, atol=1e-5)
