"""The native dynamic quantisation: integers, scales and offsets exactly as the formula gives them."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.support import DTYPES, WIDTHS, compare, randn, special, views
from torch_npu.ops.quant.npu_dynamic_quant import NpuDynamicQuant
from torch_npu.ops.quant.npu_dynamic_quant_asymmetric import NpuDynamicQuantAsymmetric

BOTH = (NpuDynamicQuant, NpuDynamicQuantAsymmetric)


def identical(definition, x, **kwargs):
    for got, want in zip(
        compare(definition, x, exact=False, **kwargs), definition.kernel(x, **kwargs), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("definition", BOTH)
def test_int8(definition, dtype):
    for width in WIDTHS:
        x = randn(5, width, dtype=dtype, scale=9)
        identical(definition, x)
        identical(definition, x, smooth_scales=randn(width, dtype=dtype).abs())
    for x in views(randn(3, 4, 33, dtype=dtype)):
        identical(definition, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("definition", BOTH)
def test_int4(definition, dtype):
    for width in (8, 16, 40, 264):
        x = randn(5, width, dtype=dtype, scale=9)
        identical(definition, x, dst_type=torch.quint4x2)


@pytest.mark.parametrize("definition", BOTH)
def test_groups(definition):
    x = randn(3, 3, 20, dtype=torch.bfloat16)
    smooth = randn(4, 20, dtype=torch.bfloat16).abs()
    ends = torch.tensor([0, 2, 2, 9], dtype=torch.int32)
    identical(definition, x, smooth_scales=smooth, group_index=ends)
    identical(definition, x, smooth_scales=smooth[:, ::2].repeat(1, 2), group_index=ends)


@pytest.mark.parametrize("definition", BOTH)
def test_rows_that_are_special(definition):
    x = randn(9, 33, dtype=torch.float16)
    x[0], x[1], x[2] = 0, 2.5, -1
    x[3, 4], x[4, 32], x[5, 0] = torch.nan, torch.inf, -torch.inf
    x[6] = special(x[6])
    identical(definition, x)


@pytest.mark.parametrize("definition", BOTH)
def test_empty(definition):
    identical(definition, randn(0, 8))
    identical(definition, randn(2, 0, 8))


def test_halves_round_to_even():
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.0]])
    y, scale = NpuDynamicQuant.native(x)
    assert scale.item() == 1 and y.tolist() == [[0, 2, 2, 0, -2, -2, 126, 127]]


def test_other_options_take_the_formula():
    x = randn(4, 8, dtype=torch.float16)
    assert NpuDynamicQuant.native(x, quant_mode="perchannel")[1].shape == (8,)
    assert NpuDynamicQuant.native(x.double())[0].dtype == torch.int8
