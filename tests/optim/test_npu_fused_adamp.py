"""NpuFusedAdamP against the published algorithm, written out per parameter in fp64."""

import math

import pytest
import torch

from tests.optim._model import assert_same, gradients, parameters, start, train
from torch_npu.optim import NpuFusedAdamP

DEFAULTS = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0,
    "delta": 0.1,
    "wd_ratio": 0.1,
    "nesterov": False,
}


def projected(p, g, step, o):
    """The step without its part along the weights, and the ratio of the decay."""
    if p.dim() < 2:
        return step, 1.0
    for view in ((p.shape[0], -1), (1, -1)):
        pv, gv, sv = p.reshape(view), g.reshape(view), step.reshape(view)
        cosines = [
            abs(float(a @ b)) / (float(a.norm()) + o["eps"]) / (float(b.norm()) + o["eps"])
            for a, b in zip(pv, gv, strict=True)
        ]
        if max(cosines) < o["delta"] / math.sqrt(pv.shape[1]):
            rows = []
            for a, s in zip(pv, sv, strict=True):
                unit = a / (a.norm() + o["eps"])
                rows.append(s - unit * (unit * s).sum())
            return torch.stack(rows).reshape(p.shape), o["wd_ratio"]
    return step, 1.0


def published(steps, options, counts=None):
    o = {**DEFAULTS, **options}
    beta1, beta2 = o["betas"]
    params = start()
    m, v = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    for step in range(steps):
        for k, g in enumerate(gradients(step)):
            m[k] = beta1 * m[k] + (1 - beta1) * g
            v[k] = beta2 * v[k] + (1 - beta2) * g**2
            root = v[k].sqrt() / math.sqrt(1 - beta2 ** (step + 1)) + o["eps"]
            ahead = beta1 * m[k] + (1 - beta1) * g if o["nesterov"] else m[k]
            change, ratio = projected(params[k], g, ahead / root, o)
            if counts is not None:
                counts.append(ratio)
            if o["weight_decay"] > 0:
                params[k] = params[k] * (1 - o["lr"] * o["weight_decay"] * ratio)
            params[k] = params[k] - o["lr"] / (1 - beta1 ** (step + 1)) * change
    return params


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lr": 0.05, "weight_decay": 0.2, "delta": 1.5},
        {"lr": 0.05, "nesterov": True, "wd_ratio": 0.5, "weight_decay": 0.1, "delta": 3.0},
        {"lr": 0.05, "betas": (0.5, 0.7), "eps": 1e-3},
    ],
)
def test_update(options):
    params = parameters()
    train(NpuFusedAdamP(params, **options), params)
    assert_same(params, published(6, options), 2e-6)


def test_the_cases_project_and_do_not():
    counts = []
    published(6, {"delta": 1.5, "lr": 0.05}, counts)
    assert 0.1 in counts and 1.0 in counts
