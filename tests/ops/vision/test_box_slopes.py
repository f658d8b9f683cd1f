"""Gradients of the box overlaps against slopes of plain formulas over pairs of boxes, in fp64."""

import math

import pytest
import torch

import torch_npu  # noqa: F401  (registers the operators)
from tests.ops.slopes import check_gradients
from tests.ops.vision._reference import centered, corners, table, terms

N = 9


@pytest.mark.parametrize("name", ["giou", "diou"])
def test_overlaps(name):
    b, g = centered(N), centered(N, 1)
    grad = torch.linspace(-1, 2, N).npu()
    backward = getattr(torch.ops.npu, f"npu_{name}_backward")
    found = backward(grad[:, None] if name == "giou" else grad[None], b, g, True, False, 0)
    check_gradients(
        lambda *boxes: table(name, *boxes, True, False), (b, g), grad.cpu()[None], found
    )


def test_ciou():
    """The weight of the aspects is taken for a constant, as its authors do."""
    b, g = centered(N), centered(N, 1)
    grad = torch.linspace(-1, 2, N).npu()
    found = torch.ops.npu.npu_ciou_backward(grad[None], b, g, None, True, False, 0)

    def pairs(one, other):
        rows = zip(one.t().tolist(), other.t().tolist(), strict=True)
        return [terms(corners(x, True), corners(y, True)) for x, y in rows]

    def aspect(t):
        return 4 / math.pi**2 * t["angle"] ** 2

    here = pairs(b.cpu().double(), g.cpu().double())
    alphas = [aspect(t) / (1 - t["share"] + aspect(t)) for t in here]

    def value(one, other):
        both = zip(pairs(one, other), alphas, strict=True)
        found = [t["diou"] - alpha * aspect(t) for t, alpha in both]
        return torch.tensor([found], dtype=torch.float64)

    check_gradients(value, (b, g), grad.cpu()[None], found)
