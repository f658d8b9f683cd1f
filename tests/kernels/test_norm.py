"""The native layer and group normalizations."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.support import DTYPES, WIDTHS, compare, randn, special, views
from torch_npu.ops.norm.npu_group_norm_silu import npu_group_norm_silu
from torch_npu.ops.norm.npu_group_norm_swish import npu_group_norm_swish, npu_group_norm_swish_grad
from torch_npu.ops.norm.npu_layer_norm_eval import npu_layer_norm_eval

SHAPES = ((2, 6), (2, 6, 1), (2, 6, 5), (3, 6, 9, 4), (1, 12, 40))


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype):
    for width in WIDTHS[1:]:  # of one element nothing is left
        x, gamma = randn(5, width, dtype=dtype), randn(width, dtype=dtype)
        compare(npu_layer_norm_eval, x, [width])
        compare(npu_layer_norm_eval, x, [width], gamma, gamma.flip(0), 1e-3)
        compare(npu_layer_norm_eval, x, [width], randn(width), None)
    for x in views(randn(3, 4, 21, dtype=dtype)):
        compare(npu_layer_norm_eval, x, [4, 21], randn(4, 21, dtype=dtype), randn(4, 21))
    compare(npu_layer_norm_eval, special(randn(4, 33, dtype=dtype)), [33], exact=False)
    compare(npu_layer_norm_eval, randn(0, 8, dtype=dtype), [8])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_group_norm(shape, dtype):
    x, gamma = randn(*shape, dtype=dtype), randn(shape[1], dtype=dtype)
    for groups in (1, 2, 3):
        compare(npu_group_norm_silu, x, None, None, groups)
        compare(npu_group_norm_silu, x, gamma, gamma.flip(0), groups)
        compare(npu_group_norm_swish, x, groups, gamma, gamma.flip(0), None, 1.5)
    compare(npu_group_norm_silu, x, randn(shape[1]), None, 3, 1e-3)


def test_group_norm_strides():
    gamma = randn(6)
    for x in views(randn(3, 6, 5)):
        compare(npu_group_norm_silu, x, gamma, gamma, 2, strides=False)
        compare(npu_group_norm_swish, x, 2, gamma, gamma, strides=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_group_norm_backward(shape, dtype):
    x, gamma = randn(*shape, dtype=dtype), randn(shape[1], dtype=dtype)
    groups = 2
    _, mean, rstd = npu_group_norm_swish.as_function("kernel")(x, groups, gamma, gamma)
    for dy in views(randn(*shape, dtype=dtype).flip(1)):
        mask = [True, True, dy.is_contiguous()]
        compare(
            npu_group_norm_swish_grad,
            dy,
            x,
            groups,
            gamma,
            gamma,
            mean,
            rstd,
            mask,
            1.2,
            strides=False,
        )


def test_large_groups_are_split_among_threads():
    x, gamma = randn(4, 8, 60, 60), randn(8)
    mean, rstd = compare(npu_group_norm_swish, x, 4, gamma, gamma)[1:]
    args = (x.flip(0), x, 4, gamma, gamma, mean, rstd, [True] * 3)
    first = compare(npu_group_norm_swish_grad, *args)
    assert all(
        torch.equal(a, b)
        for a, b in zip(first, npu_group_norm_swish_grad.as_function("body")(*args), strict=True)
    )


def test_float64_takes_the_formula():
    assert npu_layer_norm_eval.as_function("body")(randn(2, 9).double(), [9]).dtype == torch.float64
