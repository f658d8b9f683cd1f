"""npu_conv3d and its backward operator against a loop over the kernel, in fp64."""

import pytest
import torch
import torch.nn.functional as F

import torch_npu
from tests.ops.conv._reference import arguments, convolve, on_host
from tests.ops.support import assert_accurate, gradcheck, make

CASES = {
    "plain": ((2, 2, 3, 4, 3), (2, 2, 2, 3, 2), [1, 1, 1], [1, 1, 0], [1, 1, 1], 1),
    "strided": ((1, 4, 4, 3, 5), (2, 2, 2, 1, 2), [2, 1, 2], [0, 1, 1], [2, 1, 1], 2),
}


def inputs(case, *args, **options):
    return arguments(CASES[case], *args, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case,bias", [("plain", True), ("strided", False)])
def test_forward(case, dtype, bias):
    args = inputs(case, dtype, bias)
    y = torch_npu.npu_conv3d(*args)
    assert y.dtype == dtype and y.is_contiguous()
    assert_accurate(y, convolve(*on_host(args)), F.conv3d(*on_host(args, dtype)))


def test_out_and_empty_batch():
    x, weight, bias, *rest = inputs("plain")
    out = torch.empty(0, device="npu")
    torch_npu.npu_conv3d(x, weight, bias, *rest, out=out)
    assert torch.equal(out, torch_npu.npu_conv3d(x, weight, bias, *rest))
    assert torch_npu.npu_conv3d(x[:0], weight, bias, *rest).shape == (0, *out.shape[1:])


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    x, weight, bias, *rest = inputs(case, torch.float64, requires_grad=True)
    gradcheck(lambda *a: torch_npu.npu_conv3d(*a, *rest), x, weight, bias)


def test_backward_operator():
    x, weight, bias, *rest = inputs("strided", torch.float16)
    grad = make(*torch_npu.npu_conv3d(x, weight, bias, *rest).shape, dtype=torch.float16, seed=3)
    dx, dw, db = torch_npu.npu_conv3d_backward(x, grad, weight, *rest, [True, True, True])
    assert (dx.dtype, dw.dtype, db.dtype) == (torch.float16, torch.float32, torch.float16)
    hosts = [t.requires_grad_() for t in on_host((x, weight, bias))]
    wants = torch.autograd.grad(convolve(*hosts, *rest), hosts, grad.cpu().double())
    for got, want in zip((dx, dw, db), wants, strict=True):
        assert_accurate(got, want, want.to(got.dtype))


def test_bad_rank():
    x, weight, *rest = inputs("plain")
    with pytest.raises(
        RuntimeError, match="npu_conv3d: argument 'input' must be a tensor of 5 dimensions"
    ):
        torch_npu.npu_conv3d(x[0], weight, *rest)


def test_bad_lists():
    x, weight, bias, _, padding, dilation, groups = inputs("plain")
    with pytest.raises(RuntimeError, match=r"'stride' must be a list of 3 integers.*\[1, 1\]"):
        torch_npu.npu_conv3d(x, weight, bias, [1, 1], padding, dilation, groups)
    with pytest.raises(RuntimeError, match="'padding' must be integers of at least 0"):
        torch_npu.npu_conv3d(x, weight, bias, [1, 1, 1], [0, 0, -1], dilation, groups)


def test_bad_bias_and_groups():
    x, weight, _, *rest = inputs("plain")
    with pytest.raises(RuntimeError, match=r"'bias' must be of shape \(2\).*\(3,\)"):
        torch_npu.npu_conv3d(x, weight, make(3), *rest)
    with pytest.raises(RuntimeError, match="'input' must be of 6 channels"):
        torch_npu.npu_conv3d(x, weight, None, *rest[:3], 3)


def test_weight_of_another_dtype_is_cast():
    """As upstream's host code does in space; the gradient comes back in the weight's own dtype."""
    x, weight, bias, *rest = inputs("plain", torch.float16)
    full = (weight.float() * 1.0001).requires_grad_()
    y = torch_npu.npu_conv3d(x, full, bias, *rest)
    assert torch.equal(y, torch_npu.npu_conv3d(x, full.half(), bias, *rest))
    y.sum().backward()
    assert full.grad.dtype == torch.float32
    both = torch_npu.npu_convolution(x, full, bias, *rest)
    assert torch.equal(both, y)
