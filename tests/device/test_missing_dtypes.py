"""Types that the card's kernels take and PyTorch's CPU kernels do not: integers of histc, half precision of a few others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("bins", "low", "high"), [(8, 0, 8), (5, 0, 0), (7, 10, 90), (1, 3, 4)])
def test_histc_of_integers(dtype, bins, low, high):
    x = torch.randint(0, 100, (6, 11), generator=torch.Generator().manual_seed(2)).to(dtype)
    found = torch.histc(x.npu(), bins, low, high)
    edges = (low, high) if low != high else (int(x.min()), int(x.max()))
    expected, _ = np.histogram(x.numpy(), bins, edges)
    assert found.dtype == dtype and found.tolist() == expected.tolist()


def test_histc_of_one_value_of_nothing_and_with_out():
    same = torch.full((4,), 7, device="npu")
    assert torch.histc(same, 2).tolist() == [0, 4]  # the range is from 6 to 8
    assert torch.histc(torch.empty(0, dtype=torch.int32, device="npu"), 3).tolist() == [0, 0, 0]
    out = torch.empty(0, dtype=torch.int64, device="npu")
    assert torch.histc(same, 4, 0, 8, out=out) is out and out.tolist() == [0, 0, 0, 4]
    large = torch.tensor([2**40, 2**40 + 1, 2**40 + 9], device="npu")
    assert torch.histc(large, 10, 2**40, 2**40 + 10).tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0, 1]
    with pytest.raises(RuntimeError, match="bins must be > 0|bins"):
        torch.histc(same, 0)
    with pytest.raises(RuntimeError, match="max must be larger than min"):
        torch.histc(same, 2, 5, 1)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: F.avg_pool3d(x, 2, stride=1, padding=1), (2, 3, 4, 5, 4)),
        (lambda x: F.interpolate(x, (3, 5), mode="bilinear", antialias=True), (2, 3, 7, 8)),
        (lambda x: F.interpolate(x, (9, 4), mode="bicubic", antialias=True), (2, 3, 7, 8)),
        (lambda x: F.rrelu(x, 0.25, 0.25, training=True), (5, 7)),
    ],
    ids=["avg_pool3d", "bilinear", "bicubic", "rrelu"],
)
def test_half_precision(function, shape, dtype):
    """The result of fp64 on the same values, and its gradient, rounded once."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    one, two = x.npu().requires_grad_(), x.double().requires_grad_()
    found, exact = function(one), function(two)
    assert found.dtype == dtype
    torch.testing.assert_close(found.cpu(), exact.to(dtype))
    weight = torch.randn(exact.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    found.backward(weight.npu())
    exact.backward(weight.double())
    torch.testing.assert_close(one.grad.cpu(), two.grad.to(dtype))


@pytest.mark.parametrize("dtype", HALVES)
def test_multilabel_margins(dtype):
    """The gradient runs on the host on the card, which has none in half precision."""
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(3)).to(dtype)
    target = torch.tensor([[1, -1, 0], [0, 2, -1], [2, -1, 1]])
    one = x.npu().requires_grad_()
    found = F.multilabel_margin_loss(one, target.npu())
    torch.testing.assert_close(
        found.detach().cpu(), F.multilabel_margin_loss(x.double(), target).to(dtype)
    )
    with pytest.raises(RuntimeError, match="not implemented for"):
        found.backward()
