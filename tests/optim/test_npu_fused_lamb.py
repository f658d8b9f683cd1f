"""NpuFusedLamb against the published algorithm, written out per parameter in fp64."""

import math

import pytest
import torch

from tests.optim._model import assert_same, gradients, parameters, start, train
from torch_npu.optim import NpuFusedLamb

DEFAULTS = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-6,
    "weight_decay": 0,
    "adam": False,
    "use_global_grad_norm": False,
}


def published(steps, options):
    o = {**DEFAULTS, **options}
    beta1, beta2 = o["betas"]
    params = start()
    m, v = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    for step in range(steps):
        grads = gradients(step)
        norm = math.sqrt(sum(g.square().sum().item() for g in grads))
        for k, g in enumerate(grads):
            if o["use_global_grad_norm"] and norm > 1:
                g = g / norm
            m[k] = beta1 * m[k] + (1 - beta1) * g
            v[k] = beta2 * v[k] + (1 - beta2) * g**2
            update = m[k] / (v[k].sqrt() + o["eps"]) + o["weight_decay"] * params[k]
            size, reach = params[k].norm().clamp(max=10), update.norm()
            ratio = 1 if o["adam"] or size == 0 or reach == 0 else size / reach
            params[k] = params[k] - o["lr"] * ratio * update
    return params


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 0.1, "weight_decay": 0.1},
        {"lr": 0.1, "adam": True, "betas": (0.5, 0.7), "eps": 1e-3},
        {"lr": 0.1, "use_global_grad_norm": True},
    ],
)
def test_update(options):
    params = parameters()
    train(NpuFusedLamb(params, **options), params)
    assert_same(params, published(6, options), 2e-6)


def test_a_zero_parameter_has_ratio_one():
    param = torch.nn.Parameter(torch.zeros(3, device="npu"))
    param.grad = torch.ones(3, device="npu")
    NpuFusedLamb([param], lr=0.1, betas=(0.0, 0.0), eps=0.0).step()
    torch.testing.assert_close(param.detach().cpu(), torch.full((3,), -0.1))


@pytest.mark.parametrize("options", [{"lr": -1}, {"betas": (1, 0.9)}, {"eps": -1}])
def test_bad_hyperparameters(options):
    with pytest.raises(ValueError, match="Invalid"):
        NpuFusedLamb(parameters(), **options)
