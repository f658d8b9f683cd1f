"""slow_conv_dilated2d_backward against the derivative of a loop over the kernel, in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.conv._gradients import check_gradients, check_refusals
from tests.ops.conv._reference import convolve
from tests.ops.support import make

REST = ([3, 2], [2, 1], [1, 0], [1, 2])


def inputs(dtype=torch.float32):
    return (
        make(2, 3, 3, 3, dtype=dtype),
        make(2, 2, 5, 5, dtype=dtype),
        make(3, 2, 3, 2, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mask", [[True, True, True], [False, True, False], [True, False, True]])
def test_gradients(dtype, mask):
    def forward(x, weight, bias):
        return convolve(x, weight, bias, *REST[1:], 1)

    check_gradients(torch_npu.slow_conv_dilated2d_backward, forward, inputs(dtype), REST, mask)


def test_refusals():
    call = torch_npu.slow_conv_dilated2d_backward
    check_refusals(call, "slow_conv_dilated2d_backward", inputs(), REST, [True, True, True])
