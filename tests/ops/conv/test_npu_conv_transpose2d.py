"""npu_conv_transpose2d and its backward operator against scattered kernels, in fp64."""

import pytest
import torch
import torch.nn.functional as F

import torch_npu
from tests.ops.conv._reference import arguments, on_host, scatter
from tests.ops.support import assert_accurate, gradcheck, make

#: input, weight, padding, output_padding, stride, dilation, groups
CASES = {
    "plain": ((2, 3, 4, 3), (3, 2, 3, 3), [1, 1], [0, 0], [1, 1], [1, 1], 1),
    "strided": ((1, 4, 3, 4), (4, 3, 3, 2), [1, 0], [1, 2], [2, 3], [1, 2], 2),
    "point": ((1, 1, 1, 1), (1, 1, 2, 1), [0, 0], [0, 0], [1, 1], [1, 1], 1),
}


def inputs(case, *args, **options):
    return arguments(CASES[case], *args, transposed=True, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_forward(case, dtype, bias):
    args = inputs(case, dtype, bias)
    y, want = torch_npu.npu_conv_transpose2d(*args), scatter(*on_host(args))
    assert y.dtype == dtype and y.is_contiguous()
    assert_accurate(y, want, want.to(dtype))


def test_agrees_with_functional_on_the_device():
    x, weight, bias, padding, extra, stride, dilation, groups = inputs("strided")
    want = F.conv_transpose2d(x, weight, bias, stride, padding, extra, groups, dilation)
    y = torch_npu.npu_conv_transpose2d(x, weight, bias, padding, extra, stride, dilation, groups)
    torch.testing.assert_close(y, want)


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    x, weight, bias, *rest = inputs(case, torch.float64, requires_grad=True)
    gradcheck(lambda *a: torch_npu.npu_conv_transpose2d(*a, *rest), x, weight, bias)


def test_backward_operator():
    x, weight, bias, *rest = inputs("strided", torch.float16)
    y = torch_npu.npu_conv_transpose2d(x, weight, bias, *rest)
    grad = make(*y.shape, dtype=torch.float16, seed=3)
    dx, dw, db = torch_npu.npu_conv_transpose2d_backward(x, grad, weight, *rest, [True, True, True])
    assert (dx.dtype, dw.dtype, db.dtype) == (torch.float16, torch.float32, torch.float16)
    hosts = [t.requires_grad_() for t in on_host((x, weight, bias))]
    wants = torch.autograd.grad(scatter(*hosts, *rest), hosts, grad.cpu().double())
    for got, want in zip((dx, dw, db), wants, strict=True):
        assert_accurate(got, want, want.to(got.dtype))


def test_bad_channels():
    x, weight, *rest = inputs("plain")
    with pytest.raises(
        RuntimeError, match="npu_conv_transpose2d: argument 'weight' must be of 3 channels"
    ):
        torch_npu.npu_conv_transpose2d(x, weight[:2], *rest)


def test_output_padding_too_large():
    x, weight, bias, padding, _, stride, dilation, groups = inputs("plain")
    with pytest.raises(RuntimeError, match=r"'output_padding' must be smaller.*\[1, 0\]"):
        torch_npu.npu_conv_transpose2d(x, weight, bias, padding, [1, 0], stride, dilation, groups)


def test_padding_leaves_nothing():
    x, weight, bias, _, extra, stride, dilation, groups = inputs("plain")
    with pytest.raises(RuntimeError, match="'padding' must be small enough to leave a result"):
        torch_npu.npu_conv_transpose2d(x, weight, bias, [9, 9], extra, stride, dilation, groups)


def test_bad_bias():
    x, weight, _, *rest = inputs("strided")
    with pytest.raises(RuntimeError, match=r"'bias' must be of shape \(6\).*\(3,\)"):
        torch_npu.npu_conv_transpose2d(x, weight, make(3), *rest)
