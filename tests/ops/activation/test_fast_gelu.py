"""fast_gelu against the scalar formula."""

import math

import pytest
import torch

import torch_npu
from tests.ops.activation._elementwise import SHAPES, check_extremes, check_strided, check_values
from tests.ops.families import on
from tests.ops.support import gradcheck, make


def scalar(x):
    return x / (1 + math.exp(-1.702 * x))


def plain(x):
    return x / (1 + torch.exp(-1.702 * x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(shape, dtype):
    check_values(torch_npu.fast_gelu, scalar, plain, shape, dtype)


def test_strided_and_extremes():
    check_strided(torch_npu.fast_gelu, scalar, plain)
    check_extremes(torch_npu.fast_gelu)


def test_gradients():
    x = make(2, 9, dtype=torch.float64, low=-4, high=4, requires_grad=True)
    gradcheck(torch_npu.fast_gelu, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool])
def test_bad_dtype(dtype):
    text = f"fast_gelu: argument 'self' must be of dtype torch.float16 or torch.float32.*{dtype}"
    with on("310P"), pytest.raises(RuntimeError, match=text):
        torch_npu.fast_gelu(make(3, dtype=dtype, low=0, high=2))


def test_bad_rank():
    with pytest.raises(RuntimeError, match="'self' must be a tensor of 0 to 8 dimensions"):
        torch_npu.fast_gelu(make(*[1] * 9))
