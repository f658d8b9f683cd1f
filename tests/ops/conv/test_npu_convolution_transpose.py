"""npu_convolution_transpose and its backward operators, planar and spatial, against scattered kernels."""

import pytest
import torch

import torch_npu
from tests.ops.conv._reference import arguments, on_host, scatter
from tests.ops.support import assert_accurate, gradcheck, make

#: input, weight, padding, output_padding, stride, dilation, groups
CASES = {
    "2d": ((2, 4, 3, 3), (4, 2, 3, 2), [1, 0], [1, 0], [2, 1], [1, 2], 2),
    "3d": ((1, 2, 2, 3, 2), (2, 3, 2, 3, 2), [0, 1, 0], [0, 0, 1], [1, 1, 2], [1, 1, 1], 1),
}
BACKWARD = {
    "2d": torch_npu.npu_conv_transpose2d_backward,
    "3d": torch_npu.npu_conv_transpose3d_backward,
}


def inputs(case, *args, **options):
    return arguments(CASES[case], *args, transposed=True, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_forward(case, dtype, bias):
    args = inputs(case, dtype, bias)
    y, want = torch_npu.npu_convolution_transpose(*args), scatter(*on_host(args))
    assert y.dtype == dtype
    assert_accurate(y, want, want.to(dtype))


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    x, weight, bias, *rest = inputs(case, torch.float64, requires_grad=True)
    gradcheck(lambda *a: torch_npu.npu_convolution_transpose(*a, *rest), x, weight, bias)


@pytest.mark.parametrize("case", CASES)
def test_backward_operators(case):
    """The general one rounds the weight's gradient to the weight's dtype, the particular ones do not."""
    x, weight, bias, *rest = inputs(case, torch.float16)
    grad = torch_npu.npu_convolution_transpose(x, weight, bias, *rest)
    every = [True, True, True]
    general = torch_npu.npu_convolution_transpose_backward(x, grad, weight, *rest, every)
    particular = BACKWARD[case](x, grad, weight, *rest, every)
    hosts = [t.requires_grad_() for t in on_host((x, weight, bias))]
    wants = torch.autograd.grad(scatter(*hosts, *rest), hosts, grad.cpu().double())
    assert [g.dtype for g in general] == [torch.float16] * 3
    assert [g.dtype for g in particular] == [torch.float16, torch.float32, torch.float16]
    for got, fine, want in zip(general, particular, wants, strict=True):
        assert_accurate(got, want, want.half())
        assert_accurate(fine, want, want.to(fine.dtype))


def test_spatial_backward_refuses_a_plane():
    x, weight, _, *rest = inputs("2d")
    with pytest.raises(RuntimeError, match="npu_conv_transpose3d_backward: argument 'input'"):
        torch_npu.npu_conv_transpose3d_backward(x, x, weight, *rest, [True, True, True])


def test_bad_rank():
    with pytest.raises(
        RuntimeError,
        match="npu_convolution_transpose: argument 'input' must be a tensor of 4 to 5 dimensions",
    ):
        torch_npu.npu_convolution_transpose(
            make(2, 3, 4), make(3, 2, 2), None, [0], [0], [1], [1], 1
        )


def test_bad_stride():
    x, weight, bias, padding, extra, _, dilation, groups = inputs("2d")
    with pytest.raises(RuntimeError, match=r"'stride' must be integers of at least 1.*\[0, 1\]"):
        torch_npu.npu_convolution_transpose(
            x, weight, bias, padding, extra, [0, 1], dilation, groups
        )


def test_bad_gradient():
    x, weight, _, *rest = inputs("2d")
    with pytest.raises(RuntimeError, match=r"'grad' must be of shape \(2, 4, 6, 5\)"):
        torch_npu.npu_convolution_transpose_backward(x, x, weight, *rest, [True, True, True])
