"""The native scaled, masked softmax."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.support import DTYPES, WIDTHS, compare, randn, special, views
from torch_npu.ops.softmax.npu_scaled_masked_softmax import (
    npu_scaled_masked_softmax,
    npu_scaled_masked_softmax_backward,
)


def hidden(*shape):
    return randn(*shape).flip(-1) > 0.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_forward_and_backward(dtype):
    for width in WIDTHS:
        x, mask = randn(2, 5, width, dtype=dtype, scale=3), hidden(2, 1, width)
        y = compare(npu_scaled_masked_softmax, x, mask, 0.5)[0]
        compare(
            npu_scaled_masked_softmax_backward, randn(2, 5, width, dtype=dtype), y, mask, 2, False
        )


@pytest.mark.parametrize("shape", [(2, 1, 4, 40), (2, 3, 4, 40), (40,), (3, 1, 1), (4, 1)])
def test_mask_broadcasts(shape):
    x, mask = randn(2, 3, 4, 40), hidden(*shape)
    y = compare(npu_scaled_masked_softmax, x, mask)[0]
    compare(npu_scaled_masked_softmax_backward, x.flip(-1), y, mask, 1, False)


def test_strides():
    mask = hidden(3, 4, 33)
    for x, m in zip(views(randn(3, 4, 33)), views(mask), strict=True):
        compare(npu_scaled_masked_softmax, x, m, -2)
        compare(npu_scaled_masked_softmax_backward, x, x.contiguous(), m, 3, False, strides=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_rows(dtype):
    x, mask = randn(6, 40, dtype=dtype, scale=5), hidden(6, 40)
    mask[0], mask[1] = True, False
    x[2] = special(x[2])
    x[3, 3], x[4] = torch.inf, -torch.inf
    y = compare(npu_scaled_masked_softmax, x, mask, exact=False)[0]
    assert torch.equal(y[0], torch.full_like(y[0], 1 / 40))
    compare(npu_scaled_masked_softmax_backward, x.flip(0), y, mask, 1, False, exact=False)


def test_empty_and_large():
    compare(npu_scaled_masked_softmax, randn(0, 32), hidden(1, 32))
    compare(npu_scaled_masked_softmax, randn(600, 96), hidden(600, 96), 2.0)


def test_float64_takes_the_formula():
    x = randn(3, 9).double()
    assert npu_scaled_masked_softmax.as_function("body")(x, hidden(9)).dtype == torch.float64
