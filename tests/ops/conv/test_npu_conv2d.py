"""npu_conv2d and its backward operator against a loop over the kernel, in fp64."""

import pytest
import torch
import torch.nn.functional as F

import torch_npu
from tests.ops.conv._reference import arguments, convolve, on_host
from tests.ops.families import as_chip
from tests.ops.support import assert_accurate, gradcheck, make

CASES = {
    "plain": ((2, 3, 5, 6), (4, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1),
    "strided": ((1, 4, 7, 5), (6, 2, 3, 2), [2, 3], [0, 2], [2, 1], 2),
    "depthwise": ((2, 3, 4, 4), (3, 1, 2, 2), [1, 1], [0, 1], [1, 2], 3),
    "point": ((1, 1, 1, 1), (1, 1, 1, 1), [1, 1], [0, 0], [1, 1], 1),
}


def inputs(case, *args, **options):
    return arguments(CASES[case], *args, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bias", [True, False])
def test_forward(case, dtype, bias):
    args = inputs(case, dtype, bias)
    y = torch_npu.npu_conv2d(*args)
    want = convolve(*on_host(args))
    assert y.dtype == dtype and y.is_contiguous() and y.device.type == "npu"
    plain = F.conv2d(*on_host(args, dtype))
    assert_accurate(y, want, plain)


def test_half_precision_is_rounded_once():
    """4096 products of 1: a half-precision accumulator would stop at 2048."""
    x = torch.ones(1, 4096, 1, 1, dtype=torch.float16, device="npu")
    y = torch_npu.npu_conv2d(x, torch.ones_like(x), None, [1, 1], [0, 0], [1, 1], 1)
    assert y.item() == 4096


def test_non_contiguous_and_empty_batch():
    x, weight, bias, *rest = inputs("plain")
    swapped = x.transpose(2, 3).contiguous().transpose(2, 3)
    want = convolve(*on_host((x, weight, bias)), *rest)
    y = torch_npu.npu_conv2d(swapped, weight, bias, *rest)
    assert y.is_contiguous()
    assert_accurate(y, want, want.float())
    assert torch_npu.npu_conv2d(x[:0], weight, bias, *rest).shape == (0, 4, 5, 6)


def test_four_equal_paddings():
    x, weight, bias, stride, _, dilation, groups = inputs("plain")
    long = torch_npu.npu_conv2d(x, weight, bias, stride, [1, 1, 1, 1], dilation, groups)
    short = torch_npu.npu_conv2d(x, weight, bias, stride, [1, 1], dilation, groups)
    assert torch.equal(long, short)


def test_out():
    args = inputs("plain")
    out = torch.empty(0, device="npu")
    assert torch_npu.npu_conv2d(*args, out=out) is out
    assert torch.equal(out, torch_npu.npu_conv2d(*args))


@pytest.mark.parametrize("case", ["plain", "strided", "depthwise"])
def test_gradients(case):
    x, weight, bias, *rest = inputs(case, torch.float64, requires_grad=True)
    gradcheck(lambda *a: torch_npu.npu_conv2d(*a, *rest), x, weight, bias)


def test_backward_operator():
    x, weight, bias, *rest = inputs("strided", torch.float16)
    grad = make(*torch_npu.npu_conv2d(x, weight, bias, *rest).shape, dtype=torch.float16, seed=3)
    dx, dw, db = torch_npu.npu_conv2d_backward(x, grad, weight, *rest, [True, True, True])
    assert (dx.dtype, dw.dtype, db.dtype) == (torch.float16, torch.float32, torch.float16)
    hosts = [t.requires_grad_() for t in on_host((x, weight, bias))]
    wants = torch.autograd.grad(convolve(*hosts, *rest), hosts, grad.cpu().double())
    for got, want in zip((dx, dw, db), wants, strict=True):
        assert_accurate(got, want, want.to(got.dtype))


def test_backward_operator_computes_what_is_asked():
    x, weight, bias, *rest = inputs("plain")
    grad = torch_npu.npu_conv2d(x, weight, bias, *rest)
    every = torch_npu.npu_conv2d_backward(x, grad, weight, *rest, [True, True, True])
    for index in range(3):
        mask = [i == index for i in range(3)]
        found = torch_npu.npu_conv2d_backward(x, grad, weight, *rest, mask)
        assert [f is not None for f in found] == mask
        torch.testing.assert_close(found[index], every[index])


def test_agrees_with_functional_on_the_device():
    args = inputs("strided")
    torch.testing.assert_close(torch_npu.npu_conv2d(*args), F.conv2d(*args))


def test_bad_dtype():
    x, weight, *rest = inputs("plain", bias=False)
    with pytest.raises(RuntimeError, match="npu_conv2d: argument 'input' must be of dtype .*int32"):
        torch_npu.npu_conv2d(x.int(), weight.int(), *rest)


def test_weight_of_another_dtype():
    x, weight, *rest = inputs("plain")
    with pytest.raises(RuntimeError, match="argument 'weight' must be of the dtype of 'input'"):
        torch_npu.npu_conv2d(x, weight.half(), *rest)


def test_bad_rank_and_channels():
    x, weight, *rest = inputs("plain")
    with pytest.raises(RuntimeError, match="argument 'input' must be a tensor of 4 dimensions"):
        torch_npu.npu_conv2d(x[0], weight, *rest)
    with pytest.raises(RuntimeError, match="argument 'input' must be of 3 channels"):
        torch_npu.npu_conv2d(x[:, :2], weight, *rest)


@pytest.mark.parametrize(
    "stride,padding,dilation,groups,text",
    [
        ([0, 1], [1, 1], [1, 1], 1, r"'stride' must be integers of at least 1.*\[0, 1\]"),
        ([1], [1, 1], [1, 1], 1, r"'stride' must be a list of 2 integers.*\[1\]"),
        ([1, 1], [-1, 1], [1, 1], 1, "'padding' must be integers of at least 0"),
        ([1, 1], [1, 1], [0, 0], 1, "'dilation' must be integers of at least 1"),
        ([1, 1], [1, 1], [1, 1], 0, "'groups' must be positive"),
        ([1, 1], [0, 0], [5, 5], 1, "'input' must be large enough for the kernel"),
    ],
)
def test_bad_geometry(stride, padding, dilation, groups, text):
    x, weight, bias, *_ = inputs("plain")
    with pytest.raises(RuntimeError, match=text):
        torch_npu.npu_conv2d(x, weight, bias, stride, padding, dilation, groups)


def test_of_longer_lists_the_first_two_count():
    x, weight, bias, *_ = inputs("plain")
    long = torch_npu.npu_conv2d(x, weight, bias, [2, 1, 7], [1, 0, 2, 2], [1, 1, 0], 1)
    assert torch.equal(long, torch_npu.npu_conv2d(x, weight, bias, [2, 1], [1, 0], [1, 1], 1))


def test_bad_gradient_shape():
    x, weight, _, *rest = inputs("plain")
    with pytest.raises(RuntimeError, match=r"'grad_output' must be of shape \(2, 4, 5, 6\)"):
        torch_npu.npu_conv2d_backward(x, make(2, 4, 5, 5), weight, *rest, [True, True, True])


def test_bfloat16_by_chip():
    with (
        as_chip("Ascend310P3"),
        pytest.raises(RuntimeError, match="'input' must be of dtype .*bfloat16"),
    ):
        torch_npu.npu_conv2d(*inputs("plain", torch.bfloat16))
