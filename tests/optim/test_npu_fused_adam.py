"""NpuFusedAdam against torch.optim.Adam."""

import copy

import pytest
import torch

from tests.optim._model import against_torch, assert_same, parameters, train
from torch_npu.optim import NpuFusedAdam

OPTIONS = [
    {},
    {"weight_decay": 0.1},
    {"amsgrad": True, "betas": (0.7, 0.8), "eps": 1e-3, "lr": 0.1},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_update_is_torchs(options):
    against_torch(NpuFusedAdam, torch.optim.Adam, options)


@pytest.mark.parametrize("options", OPTIONS)
def test_half_precision(options):
    """Parameters and states in float16, side by side with torch's optimiser on the CPU in float16."""
    ours, theirs = parameters(torch.float16), parameters(torch.float16, "cpu")
    train(NpuFusedAdam(ours, **options), ours, 3)
    train(torch.optim.Adam(theirs, **options, foreach=False), theirs, 3)
    assert_same(ours, theirs, 5e-3)


@pytest.mark.parametrize("options", OPTIONS)
def test_state_goes_over(options):
    """A state saved after three steps, ours or torch's, goes on to the same place."""
    theirs = parameters(torch.float64, "cpu")
    plain = torch.optim.Adam(theirs, **options)
    train(plain, theirs, 3)
    saved = copy.deepcopy(plain.state_dict())
    kept = [p.detach().clone() for p in theirs]
    train(plain, theirs, 2, first=3)

    mine = parameters()
    with torch.no_grad():
        for param, value in zip(mine, kept, strict=True):
            param.copy_(value)
    fused = NpuFusedAdam(mine, **options)
    fused.load_state_dict(saved)
    train(fused, mine, 1, first=3)
    again = NpuFusedAdam(mine, **options)
    again.load_state_dict(fused.state_dict())
    train(again, mine, 1, first=4)
    assert_same(mine, theirs)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": -1.0},
        {"betas": (1.0, 0.9)},
        {"betas": (0.9, -0.1)},
        {"eps": -1e-8},
        {"weight_decay": -1},
    ],
)
def test_bad_hyperparameters(options):
    with pytest.raises(ValueError, match="Invalid|requires"):
        NpuFusedAdam(parameters(), **options)
