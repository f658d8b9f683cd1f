"""The native RMS norms."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.support import DTYPES, WIDTHS, compare, randn, special, views
from torch_npu.ops.norm.npu_add_rms_norm import npu_add_rms_norm
from torch_npu.ops.norm.npu_add_rms_norm_cast import npu_add_rms_norm_cast
from torch_npu.ops.norm.npu_add_rms_norm_v2 import npu_add_rms_norm_v2
from torch_npu.ops.norm.npu_gemma_rms_norm import npu_gemma_rms_norm
from torch_npu.ops.norm.npu_rms_norm import npu_rms_norm, npu_rms_norm_backward

ADDING = (npu_add_rms_norm, npu_add_rms_norm_cast, npu_add_rms_norm_v2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", [npu_rms_norm, npu_gemma_rms_norm])
def test_forward(operator, dtype):
    for width in WIDTHS:
        compare(operator, randn(5, width, dtype=dtype), randn(width, dtype=dtype))
    gamma = randn(4, 21, dtype=dtype)
    for x in views(randn(3, 4, 21, dtype=dtype)):
        compare(operator, x, gamma, 1e-3)
        compare(operator, x, gamma[0])
    compare(operator, randn(0, 8, dtype=dtype), randn(8, dtype=dtype))
    compare(operator, special(randn(5, 33, dtype=dtype)), randn(33, dtype=dtype), exact=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gamma_in_float32(dtype):
    compare(npu_rms_norm, randn(5, 33, dtype=dtype), randn(33))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", ADDING)
def test_with_addition(operator, dtype):
    for width in WIDTHS:
        x = randn(5, width, dtype=dtype)
        compare(operator, x, x.flip(0), randn(width, dtype=dtype), exact=False)
    for x1, x2 in zip(
        views(randn(2, 5, 21, dtype=dtype)), views(randn(2, 5, 21, dtype=dtype)), strict=True
    ):
        compare(operator, x1, x2, randn(21, dtype=dtype), 1e-5, exact=False)


def test_in_place_form_writes_its_inputs():
    x1, x2, gamma = randn(3, 40), randn(3, 40).flip(1), randn(40)
    want = npu_add_rms_norm.as_function("kernel")(x1, x2, gamma)
    rstd = npu_add_rms_norm_v2.as_function("body")(x1, x2, gamma)
    for got, right in zip((x1, rstd, x2), want, strict=True):
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward(dtype):
    for width in WIDTHS[2:]:  # of one or two elements hardly a gradient is left
        x, gamma = randn(5, width, dtype=dtype), randn(width, dtype=dtype)
        rstd = npu_rms_norm.as_function("kernel")(x, gamma)[1]
        compare(npu_rms_norm_backward, randn(5, width, dtype=dtype).flip(0), x, gamma, rstd)
    gamma = randn(4, 21)
    for x in views(randn(3, 4, 21, dtype=dtype)):
        rstd = npu_rms_norm.as_function("kernel")(x, gamma)[1]
        dy = randn(3, 4, 21, dtype=dtype).flip(1)
        compare(npu_rms_norm_backward, dy, x, gamma, rstd, strides=False)


def test_many_rows_are_split_among_threads():
    x, gamma = randn(700, 256), randn(256)
    rstd = compare(npu_rms_norm, x, gamma)[1]
    first = compare(npu_rms_norm_backward, x.flip(0), x, gamma, rstd)
    again = npu_rms_norm_backward.as_function("body")(x.flip(0), x, gamma, rstd)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_float64_takes_the_formula():
    assert (
        npu_rms_norm.as_function("body")(randn(2, 9).double(), randn(9).double())[0].dtype
        == torch.float64
    )
