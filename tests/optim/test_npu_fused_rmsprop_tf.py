"""NpuFusedRMSpropTF against timm's published algorithm, written out per parameter in fp64."""

import pytest
import torch

from tests.optim._model import assert_same, gradients, parameters, start, train
from torch_npu.optim import NpuFusedRMSpropTF

DEFAULTS = {
    "lr": 1e-2,
    "alpha": 0.9,
    "eps": 1e-10,
    "weight_decay": 0,
    "momentum": 0.0,
    "centered": False,
    "decoupled_decay": False,
    "lr_in_momentum": True,
}


def published(steps, options):
    o = {**DEFAULTS, **options}
    params = start()
    square = [torch.ones_like(p) for p in params]
    buffer, mean = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    for step in range(steps):
        for k, g in enumerate(gradients(step)):
            if o["weight_decay"] and o["decoupled_decay"]:
                params[k] -= o["weight_decay"] * params[k]
            elif o["weight_decay"]:
                g = g + o["weight_decay"] * params[k]
            square[k] += (1 - o["alpha"]) * (g**2 - square[k])
            spread = square[k]
            if o["centered"]:
                mean[k] += (1 - o["alpha"]) * (g - mean[k])
                spread = square[k] - mean[k] ** 2
            direction = g / (spread + o["eps"]).sqrt()
            if o["momentum"] > 0 and o["lr_in_momentum"]:
                buffer[k] = o["momentum"] * buffer[k] + o["lr"] * direction
                params[k] -= buffer[k]
            elif o["momentum"] > 0:
                buffer[k] = o["momentum"] * buffer[k] + direction
                params[k] -= o["lr"] * buffer[k]
            else:
                params[k] -= o["lr"] * direction
    return params


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1, "momentum": 0.9},
        {"weight_decay": 0.1, "decoupled_decay": True},
        {"momentum": 0.9, "lr_in_momentum": False, "lr": 0.1},
        {"centered": True, "alpha": 0.7, "eps": 1e-2},
    ],
)
def test_update(options):
    params = parameters()
    train(NpuFusedRMSpropTF(params, **options), params)
    assert_same(params, published(6, options))


def test_the_mean_square_starts_at_one():
    params = parameters()
    optimizer = NpuFusedRMSpropTF(params, momentum=0.9, centered=True)
    optimizer._init_param_state(params[0], momentum=0.9, centered=True)
    state = optimizer.state[params[0]]
    assert state["step"] == 0 and (state["square_avg"] == 1).all()
    assert (state["grad_avg"] == 0).all() and (state["momentum_buffer"] == 0).all()


@pytest.mark.parametrize("name", ["lr", "eps", "momentum", "weight_decay", "alpha"])
def test_bad_hyperparameters(name):
    with pytest.raises(ValueError, match="Invalid"):
        NpuFusedRMSpropTF(parameters(), **{name: -0.1})
