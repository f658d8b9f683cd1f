"""npu_gelu and its gradient against the scalar formulas."""

import math

import pytest
import torch

import torch_npu
from tests.ops.activation._elementwise import (
    SHAPES,
    by_number,
    check_extremes,
    check_strided,
    check_values,
)
from tests.ops.families import on
from tests.ops.support import assert_accurate, gradcheck, make

ROOT = math.sqrt(2 / math.pi)
SCALAR = {
    "none": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "tanh": lambda x: 0.5 * x * (1 + math.tanh(ROOT * (x + 0.044715 * x**3))),
}
PLAIN = {
    "none": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "tanh": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**3))),
}


def slope_none(g, x):
    return g * (
        0.5 * (1 + math.erf(x / math.sqrt(2))) + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    )


def slope_tanh(g, x):
    t = math.tanh(ROOT * (x + 0.044715 * x**3))
    return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT * (1 + 3 * 0.044715 * x * x))


SLOPE = {"none": slope_none, "tanh": slope_tanh}


@pytest.mark.parametrize("how", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_forward(shape, dtype, how):
    def operator(x):
        return torch_npu.npu_gelu(x, approximate=how)

    check_values(operator, SCALAR[how], PLAIN[how], shape, dtype)


def test_default_is_the_error_function():
    x = make(50, low=-3, high=3)
    got = torch_npu.npu_gelu(x)
    assert_accurate(got, by_number(SCALAR["none"], x), PLAIN["none"](x.cpu()))
    assert (got - torch_npu.npu_gelu(x, approximate="tanh")).abs().max() > 1e-5


def test_strided_and_extremes():
    check_strided(torch_npu.npu_gelu, SCALAR["none"], PLAIN["none"])
    check_extremes(torch_npu.npu_gelu)


@pytest.mark.parametrize("how", ["none", "tanh"])
def test_backward_operator(how):
    grad, x = make(4, 9), make(9, 4, low=-4, high=4).t()
    got = torch_npu.npu_gelu_backward(grad, x, approximate=how)
    want = by_number(SLOPE[how], grad, x)
    assert_accurate(got, want, want.float())


def test_backward_broadcasts_and_promotes():
    grad, x = make(9, dtype=torch.float16), make(4, 9, low=-2)
    got = torch_npu.npu_gelu_backward(grad, x)
    want = by_number(SLOPE["none"], grad.expand(4, 9), x)
    assert got.dtype == torch.float32
    assert_accurate(got, want, want.float())


@pytest.mark.parametrize("how", ["none", "tanh"])
def test_gradients(how):
    x = make(3, 7, dtype=torch.float64, low=-4, high=4, requires_grad=True)
    gradcheck(lambda x: torch_npu.npu_gelu(x, approximate=how), x)


def test_bad_approximation():
    with pytest.raises(
        RuntimeError, match="npu_gelu: argument 'approximate' must be 'none' or 'tanh'.*'sigmoid'"
    ):
        torch_npu.npu_gelu(make(3), approximate="sigmoid")


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="npu_gelu: argument 'self' must be of dtype .*float64"):
        torch_npu.npu_gelu(make(3, dtype=torch.float64))


def test_no_bfloat16_on_old_chips():
    with on("310P"), pytest.raises(RuntimeError, match="'self' must be of dtype .*bfloat16"):
        torch_npu.npu_gelu(make(3, dtype=torch.bfloat16))


def test_backward_shapes_that_do_not_broadcast():
    with pytest.raises(
        RuntimeError, match=r"npu_gelu_backward: argument 'grad_output' must be .*\(3,\).*\(2,\)"
    ):
        torch_npu.npu_gelu_backward(make(2), make(3))
