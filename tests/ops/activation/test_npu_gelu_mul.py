"""npu_gelu_mul against the formula, number by number."""

import math

import pytest
import torch

import torch_npu
from tests.ops.activation._elementwise import by_number
from tests.ops.families import on
from tests.ops.support import assert_accurate, make

ROOT = math.sqrt(2 / math.pi)
SCALAR = {
    "none": lambda x, y: 0.5 * x * (1 + math.erf(x / math.sqrt(2))) * y,
    "tanh": lambda x, y: 0.5 * x * (1 + math.tanh(ROOT * (x + 0.044715 * x**3))) * y,
}


def check(x, how):
    y = torch_npu.npu_gelu_mul(x, approximate=how)
    half = x.shape[-1] // 2
    a, b = x.cpu()[..., :half], x.cpu()[..., half:]
    assert y.dtype == x.dtype and y.is_contiguous()
    plain = torch.nn.functional.gelu(a, approximate=how) * b
    assert_accurate(y, by_number(SCALAR[how], a, b), plain)


@pytest.mark.parametrize("how", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(4, 32), (2, 3, 10), (1, 2), (0, 8), (2, 1024)])
def test_forward(shape, dtype, how):
    check(make(*shape, dtype=dtype, low=-4, high=4), how)


def test_default_and_strided():
    x = make(10, 6, low=-4, high=4).t()
    check(x, "none")
    assert torch.equal(torch_npu.npu_gelu_mul(x), torch_npu.npu_gelu_mul(x, approximate="none"))


@pytest.mark.parametrize("shape", [(4, 7), (4, 1026)])
def test_last_dimension(shape):
    with pytest.raises(
        RuntimeError, match="npu_gelu_mul: argument 'input' must be of an even last dimension up to"
    ):
        torch_npu.npu_gelu_mul(make(*shape))


def test_leading_dimensions():
    x = make(2).expand(200001, 2)
    with pytest.raises(
        RuntimeError, match="argument 'input' must be of leading dimensions .*200000"
    ):
        torch_npu.npu_gelu_mul(x)


def test_rank_and_approximation():
    with pytest.raises(
        RuntimeError, match="argument 'input' must be a tensor of 2 to 8 dimensions"
    ):
        torch_npu.npu_gelu_mul(make(8))
    with pytest.raises(
        RuntimeError, match="argument 'approximate' must be 'none' or 'tanh'.*'erf'"
    ):
        torch_npu.npu_gelu_mul(make(2, 8), approximate="erf")


def test_dtypes():
    with pytest.raises(RuntimeError, match="argument 'input' must be of dtype .*int8"):
        torch_npu.npu_gelu_mul(make(2, 8, dtype=torch.int8, high=3))
    with (
        on("310P"),
        pytest.raises(RuntimeError, match="'input' must be of dtype .*bfloat16"),
    ):
        torch_npu.npu_gelu_mul(make(2, 8, dtype=torch.bfloat16))
