"""Optimizers on the device follow those on the CPU."""

from __future__ import annotations

import pytest
import torch

import torch_npu  # noqa: F401


@pytest.mark.parametrize(
    "optimizer",
    ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "LBFGS"],
)
@pytest.mark.parametrize("foreach", [False, True])
def test_optimizers_follow_the_cpu(optimizer, foreach):
    if optimizer == "LBFGS" and foreach:
        options = {"line_search_fn": "strong_wolfe"}
    elif optimizer == "LBFGS":
        options = {}
    else:
        options = {"foreach": foreach}
    results = []
    for device in ("cpu", "npu"):
        w = torch.nn.Parameter(torch.linspace(-1, 1, 6, device=device))
        steps = getattr(torch.optim, optimizer)([w], lr=0.1, **options)

        def closure(w=w, steps=steps):
            steps.zero_grad()
            loss = ((w - 2) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(5):
            steps.step(closure)
        results.append(w.detach().cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_fused_optimizers_follow_the_plain_ones(optimizer):
    results = []
    for fused in (False, True):
        w = torch.nn.Parameter(torch.linspace(-1, 1, 6, device="npu"))
        steps = getattr(torch.optim, optimizer)([w], lr=0.1, fused=fused, foreach=False)
        for _ in range(4):
            steps.zero_grad()
            ((w - 2) ** 2).sum().backward()
            steps.step()
        results.append(w.detach())
    torch.testing.assert_close(results[1], results[0])


def test_clip_grad_norm():
    w = torch.nn.Parameter(torch.zeros(4, device="npu"))
    w.grad = torch.full((4,), 3.0, device="npu")
    norm = torch.nn.utils.clip_grad_norm_([w], 1.0)
    assert norm.item() == pytest.approx(6) and w.grad.norm().item() == pytest.approx(1, rel=1e-4)
