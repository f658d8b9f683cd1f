"""_conv_depthwise2d_backward against the derivative of a loop over the kernel, in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.conv._gradients import check_gradients, check_refusals
from tests.ops.conv._reference import convolve
from tests.ops.support import make

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
    def forward(x, weight):
        return convolve(x, weight, None, *REST[1:], 3)

    check_gradients(torch.ops.npu._conv_depthwise2d_backward, forward, inputs(dtype), REST, mask)


def test_refusals():
    call = torch_npu._conv_depthwise2d_backward
    check_refusals(call, "_conv_depthwise2d_backward", inputs(), REST, [True, True])
