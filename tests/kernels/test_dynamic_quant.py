"""The native dynamic quantization: integers, scales and offsets exactly as the formula gives them."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.support import DTYPES, WIDTHS, compare, randn, special, views
from torch_npu.ops.quant.npu_dynamic_quant import npu_dynamic_quant
from torch_npu.ops.quant.npu_dynamic_quant_asymmetric import npu_dynamic_quant_asymmetric

BOTH = (npu_dynamic_quant, npu_dynamic_quant_asymmetric)


def identical(operator, x, **kwargs):
    for got, want in zip(
        compare(operator, x, exact=False, **kwargs),
        operator.as_function("kernel")(x, **kwargs),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", BOTH)
def test_int8(operator, dtype):
    for width in WIDTHS:
        x = randn(5, width, dtype=dtype, scale=9)
        identical(operator, x)
        identical(operator, x, smooth_scales=randn(width, dtype=dtype).abs())
    for x in views(randn(3, 4, 33, dtype=dtype)):
        identical(operator, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", BOTH)
def test_int4(operator, dtype):
    for width in (8, 16, 40, 264):
        x = randn(5, width, dtype=dtype, scale=9)
        identical(operator, x, dst_type=torch.quint4x2)


@pytest.mark.parametrize("operator", BOTH)
def test_groups(operator):
    x = randn(3, 3, 20, dtype=torch.bfloat16)
    smooth = randn(4, 20, dtype=torch.bfloat16).abs()
    ends = torch.tensor([0, 2, 2, 9], dtype=torch.int32)
    identical(operator, x, smooth_scales=smooth, group_index=ends)
    identical(operator, x, smooth_scales=smooth[:, ::2].repeat(1, 2), group_index=ends)


@pytest.mark.parametrize("operator", BOTH)
def test_rows_that_are_special(operator):
    x = randn(9, 33, dtype=torch.float16)
    x[0], x[1], x[2] = 0, 2.5, -1
    x[3, 4], x[4, 32], x[5, 0] = torch.nan, torch.inf, -torch.inf
    x[6] = special(x[6])
    identical(operator, x)


@pytest.mark.parametrize("operator", BOTH)
def test_empty(operator):
    identical(operator, randn(0, 8))
    identical(operator, randn(2, 0, 8))


def test_halves_round_to_even():
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.0]])
    y, scale = npu_dynamic_quant.as_function("body")(x)
    assert scale.item() == 1 and y.tolist() == [[0, 2, 2, 0, -2, -2, 126, 127]]


def test_other_options_take_the_formula():
    x = randn(4, 8, dtype=torch.float16)
    assert npu_dynamic_quant.as_function("body")(x, quant_mode="perchannel")[1].shape == (8,)
    assert npu_dynamic_quant.as_function("body")(x.double())[0].dtype == torch.int8
