"""NpuFusedBertAdam against its published algorithm, written out per parameter in fp64."""

import math

import pytest
import torch

from tests.optim._model import assert_same, gradients, parameters, start, train
from torch_npu.optim import NpuFusedBertAdam

DEFAULTS = {
    "warmup": -1,
    "t_total": -1,
    "schedule": "warmup_linear",
    "b1": 0.9,
    "b2": 0.999,
    "e": 1e-6,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
}


def rate(step, o):
    if o["t_total"] == -1:
        return o["lr"]
    x = step / o["t_total"]
    if x < o["warmup"]:
        return o["lr"] * x / o["warmup"]
    return (
        o["lr"]
        * {
            "warmup_cosine": 0.5 * (1 + math.cos(math.pi * x)),
            "warmup_constant": 1.0,
            "warmup_linear": max((x - 1) / (o["warmup"] - 1), 0),
            "warmup_poly": (1 - x) ** 0.5,
        }[o["schedule"]]
    )


def published(steps, options):
    """The norm is that of all gradients together, as the fused optimizer clips them."""
    o = {**DEFAULTS, **options}
    params = start()
    m, v = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    for step in range(steps):
        grads = gradients(step)
        norm = math.sqrt(sum(g.square().sum().item() for g in grads))
        for k, g in enumerate(grads):
            if o["max_grad_norm"] > 0 and norm > o["max_grad_norm"]:
                g = g * o["max_grad_norm"] / (norm + 1e-6)
            m[k] = o["b1"] * m[k] + (1 - o["b1"]) * g
            v[k] = o["b2"] * v[k] + (1 - o["b2"]) * g**2
            update = m[k] / (v[k].sqrt() + o["e"]) + o["weight_decay"] * params[k]
            params[k] = params[k] - rate(step, o) * update
    return params


@pytest.mark.parametrize(
    "options",
    [
        {"lr": 0.01},
        {"lr": 0.01, "max_grad_norm": -1, "weight_decay": 0.0},
        {"lr": 0.1, "warmup": 0.2, "t_total": 10, "b1": 0.5, "b2": 0.7, "e": 1e-3},
        {"lr": 0.1, "warmup": 0.2, "t_total": 10, "schedule": "warmup_cosine"},
        {"lr": 0.1, "warmup": 0.2, "t_total": 10, "schedule": "warmup_constant"},
        {"lr": 0.1, "warmup": 0.2, "t_total": 10, "schedule": "warmup_poly"},
    ],
)
def test_update(options):
    params = parameters()
    train(NpuFusedBertAdam(params, **options), params)
    assert_same(params, published(6, options), 2e-6)


def test_lr_is_required():
    with pytest.raises(ValueError, match="required optimization parameter lr"):
        NpuFusedBertAdam(parameters())


@pytest.mark.parametrize(
    "options",
    [{"lr": -1.0}, {"warmup": 1.0}, {"warmup": -0.5}, {"schedule": "up"}, {"b1": 1}, {"e": -1}],
)
def test_bad_hyperparameters(options):
    with pytest.raises(ValueError, match="Invalid"):
        NpuFusedBertAdam(parameters(), **{"lr": 0.1, **options})
