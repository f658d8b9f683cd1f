"""_DistributedMuon on one rank: the direction is nearly orthogonal, and a step is momentum, direction, weight decay."""

from __future__ import annotations

import math

import pytest
import torch

from torch_npu.optim import _DistributedMuon
from torch_npu.optim.distributed_muon import (
    _get_shard_dim,
    _is_dtensor_shard,
    _newtonschulz_orthogonalize,
)

A, B, C = 3.4445, -4.7750, 2.0315


def orthogonal(matrix):
    """The iteration in fp64, by singular values: each goes through the polynomial five times."""
    u, s, v = torch.linalg.svd(matrix.double().cpu(), full_matrices=False)
    s = s / matrix.double().cpu().norm()
    for _ in range(5):
        s = A * s + B * s**3 + C * s**5
    return u @ torch.diag(s) @ v


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_the_iteration_moves_singular_values_alone(shape):
    x = torch.randn(shape)
    found = _newtonschulz_orthogonalize(x.npu())
    assert found.dtype == torch.bfloat16 and found.shape == x.shape
    assert (found.cpu().double() - orthogonal(x)).abs().max() < 0.06


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("adjust", [None, "original", "match_rms_adamw"])
def test_two_steps(nesterov, adjust):
    start = torch.randn(8, 5)
    weight = torch.nn.Parameter(start.npu())
    optimizer = _DistributedMuon(
        [weight], lr=0.1, weight_decay=0.2, momentum=0.9, nesterov=nesterov, adjust_lr_fn=adjust
    )
    want, average = start.double(), torch.zeros(8, 5, dtype=torch.float64)
    rate = 0.1 * (0.2 * math.sqrt(8) if adjust == "match_rms_adamw" else math.sqrt(8 / 5))
    for _ in range(2):
        grad = torch.randn(8, 5)
        weight.grad = grad.npu()
        optimizer.step()
        average = 0.9 * average + 0.1 * grad
        direction = 0.1 * grad + 0.9 * average if nesterov else average
        want = want * (1 - 0.1 * 0.2) - rate * orthogonal(direction)
    assert (weight.detach().cpu().double() - want).abs().max() < 0.02


def test_a_closure_and_parameters_without_gradients():
    weight, other = (torch.nn.Parameter(torch.ones(2, 2).npu()) for _ in range(2))
    optimizer = _DistributedMuon([weight, other])
    assert optimizer.step(lambda: weight.sum().backward() or 3.0) == 3.0
    assert other.detach().eq(1).all() and not weight.detach().eq(1).all()


def test_plain_tensors_are_not_cut():
    x = torch.ones(2, 2)
    assert not _is_dtensor_shard(x) and _get_shard_dim(x) == 0


@pytest.mark.parametrize(
    "options,message",
    [
        ({"lr": -1.0}, "Learning rate should be >= 0 but is: -1.0"),
        ({"momentum": -1.0}, "momentum should be >= 0 but is: -1.0"),
        ({"weight_decay": -1.0}, "weight decay should be >= 0 but is: -1.0"),
        ({"adjust_lr_fn": "other"}, "function other is not supported"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        _DistributedMuon([torch.nn.Parameter(torch.ones(2, 2))], **options)


def test_only_matrices():
    with pytest.raises(ValueError, match="only supports 2D parameters"):
        _DistributedMuon([torch.nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="less than 100, but is 100"):
        _newtonschulz_orthogonalize(torch.ones(2, 2), ns_steps=100)
