"""npu_convolution and its backward operator: the planar and the spatial form, by the rank of the input."""

import pytest
import torch

import torch_npu
from tests.ops.conv._reference import arguments, convolve, on_host
from tests.ops.support import assert_accurate, gradcheck, make

CASES = {
    "2d": ((2, 4, 5, 6), (2, 2, 3, 2), [1, 2], [1, 0], [1, 2], 2),
    "3d": ((1, 2, 3, 4, 3), (3, 2, 2, 3, 2), [1, 1, 2], [1, 1, 0], [1, 1, 1], 1),
}


def inputs(case, *args, **options):
    return arguments(CASES[case], *args, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_forward(case, dtype, bias):
    args = inputs(case, dtype, bias)
    y, want = torch_npu.npu_convolution(*args), convolve(*on_host(args))
    assert y.dtype == dtype
    assert_accurate(y, want, want.to(dtype))


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    x, weight, bias, *rest = inputs(case, torch.float64, requires_grad=True)
    gradcheck(lambda *a: torch_npu.npu_convolution(*a, *rest), x, weight, bias)


def test_only_the_weight_is_trained():
    x, weight, bias, *rest = inputs("2d")
    weight.requires_grad_()
    torch_npu.npu_convolution(x, weight, bias, *rest).sum().backward()
    host = on_host((x, weight, bias))
    want = torch.autograd.grad(
        convolve(host[0], host[1].requires_grad_(), host[2], *rest).sum(), host[1]
    )
    assert_accurate(weight.grad, want[0], want[0].float())


@pytest.mark.parametrize("case", CASES)
def test_backward_operator_keeps_the_dtype_of_the_weight(case):
    x, weight, bias, *rest = inputs(case, torch.float16)
    grad = torch_npu.npu_convolution(x, weight, bias, *rest)
    found = torch_npu.npu_convolution_backward(x, grad, weight, *rest, [True, True, True])
    hosts = [t.requires_grad_() for t in on_host((x, weight, bias))]
    wants = torch.autograd.grad(convolve(*hosts, *rest), hosts, grad.cpu().double())
    for got, want in zip(found, wants, strict=True):
        assert got.dtype == torch.float16
        assert_accurate(got, want, want.half())


def test_bad_rank():
    with pytest.raises(
        RuntimeError,
        match="npu_convolution: argument 'input' must be a tensor of 4 to 5 dimensions",
    ):
        torch_npu.npu_convolution(make(2, 3, 4), make(2, 3, 2), None, [1], [0], [1], 1)


def test_weight_of_another_rank():
    x, _, _, *rest = inputs("2d")
    with pytest.raises(RuntimeError, match="argument 'weight' must be a tensor of 4 dimensions"):
        torch_npu.npu_convolution(x, make(2, 2, 3, 2, 1), None, *rest)


def test_bad_bias():
    x, weight, _, *rest = inputs("2d")
    with pytest.raises(RuntimeError, match=r"argument 'bias' must be of shape \(2\).*\(5,\)"):
        torch_npu.npu_convolution(x, weight, make(5), *rest)
