"""The native cross-entropy loss."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.kernels.support import DTYPES, WIDTHS, compare, randn, views
from torch_npu.ops.loss.npu_cross_entropy_loss import (
    npu_cross_entropy_loss,
    npu_cross_entropy_loss_backward,
)

OPTIONS = list(itertools.product(("mean", "sum", "none"), (-100, 1), (0.0, 0.1), (False, True)))


def classes(rows, width):
    return torch.arange(rows) * 5 % width


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction,ignored,smoothing,weighted", OPTIONS)
def test_forward_and_backward(dtype, reduction, ignored, smoothing, weighted):
    x, target = randn(6, 37, dtype=dtype, scale=4), classes(6, 37)
    target[2] = 1
    weight = randn(37).abs() + 0.1 if weighted else None
    options = (reduction, ignored, smoothing)
    loss, log_prob, *_ = compare(npu_cross_entropy_loss, x, target, weight, *options)
    compare(npu_cross_entropy_loss_backward, loss, log_prob, target, weight, None, None, *options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_widths(dtype):
    for width in (*WIDTHS, 2048, 5000):
        x, target = randn(3, width, dtype=dtype, scale=4), classes(3, width)
        log_prob = compare(npu_cross_entropy_loss, x, target)[1]
        compare(npu_cross_entropy_loss_backward, x[0, :1], log_prob, target)


def test_strides():
    target = classes(5, 33)
    for x in views(randn(5, 33)):
        compare(npu_cross_entropy_loss, x, target, reduction="none")
        compare(npu_cross_entropy_loss_backward, x[:1, 0], x, target, strides=False)


def test_not_finite():
    x = randn(7, 2500)
    x[0, 5], x[1, 2400], x[2, 7], x[3] = torch.inf, torch.nan, -torch.inf, -torch.inf
    x[4, :2048], x[5, 9] = -torch.inf, 3e38
    compare(npu_cross_entropy_loss, x, classes(7, 2500), reduction="none", exact=False)


def test_a_target_out_of_range_is_an_error():
    with pytest.raises(IndexError, match=r"argument .target.: expected indices in .*, received 9"):
        npu_cross_entropy_loss.as_function("body")(randn(2, 9), torch.tensor([0, 9]))
    with pytest.raises(IndexError, match=r"argument .target.: expected indices in .*, received -1"):
        npu_cross_entropy_loss_backward.as_function("body")(
            randn(1), randn(2, 9), torch.tensor([0, -1])
        )


def test_the_z_loss_takes_the_formula():
    out = npu_cross_entropy_loss.as_function("body")(
        randn(2, 9), classes(2, 9), lse_square_scale_for_zloss=0.1, return_zloss=True
    )
    assert out[3].shape == (2,)
