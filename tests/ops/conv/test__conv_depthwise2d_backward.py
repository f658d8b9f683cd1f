"""_conv_depthwise2d_backward against the derivative of a loop over the kernel, in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.conv._reference import convolve, on_host
from tests.ops.support import assert_accurate, make

REST = ([3, 2], [2, 1], [1, 0], [1, 2])


def inputs(dtype=torch.float32):
    return (
        make(2, 6, 3, 3, dtype=dtype),
        make(2, 3, 5, 5, dtype=dtype),
        make(6, 1, 3, 2, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mask", [[True, True], [False, True], [True, False]])
def test_gradients(dtype, mask):
    grad, x, weight = inputs(dtype)
    found = torch.ops.npu._conv_depthwise2d_backward(grad, x, weight, *REST, mask)
    leaves = [t.requires_grad_() for t in on_host((x, weight))]
    y = convolve(*leaves, None, *REST[1:], 3)
    wants = torch.autograd.grad(y, leaves, grad.cpu().double())
    for got, want, asked in zip(found, wants, mask, strict=True):
        assert (got is not None) == asked
        if asked:
            assert got.dtype == dtype
            assert_accurate(got, want, want.to(dtype))


def test_refusals():
    grad, x, weight = inputs()
    call = torch_npu._conv_depthwise2d_backward
    with pytest.raises(RuntimeError, match="_conv_depthwise2d_backward: argument 'weight' must"):
        call(grad, x, weight, [3, 3], *REST[1:], [True, True])
    with pytest.raises(RuntimeError, match="argument 'self' must be a tensor of 4 dimensions"):
        call(grad, x[0], weight, *REST, [True, True])
    with pytest.raises(RuntimeError, match=r"argument 'grad_output' must be of shape"):
        call(grad[:1], x, weight, *REST, [True, True])
