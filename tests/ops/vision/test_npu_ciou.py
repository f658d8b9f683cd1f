"""npu_ciou against a loop over boxes; gradients against autograd of the formula with a constant alpha."""

import math

import pytest
import torch

import torch_npu
from softnpu import settings
from tests.ops.families import on
from tests.ops.support import assert_accurate, make
from tests.ops.vision._reference import boxes, centered, table


def formula(b, g):
    """CIoU of (4, n) boxes x, y, w, h, differentiable but for alpha."""
    bx1, bx2, by1, by2 = b[0] - b[2] / 2, b[0] + b[2] / 2, b[1] - b[3] / 2, b[1] + b[3] / 2
    gx1, gx2, gy1, gy2 = g[0] - g[2] / 2, g[0] + g[2] / 2, g[1] - g[3] / 2, g[1] + g[3] / 2
    shared = (torch.minimum(bx2, gx2) - torch.maximum(bx1, gx1)).clamp(0) * (
        torch.minimum(by2, gy2) - torch.maximum(by1, gy1)
    ).clamp(0)
    iou = shared / (b[2] * b[3] + g[2] * g[3] - shared)
    cw = torch.maximum(bx2, gx2) - torch.minimum(bx1, gx1)
    ch = torch.maximum(by2, gy2) - torch.minimum(by1, gy1)
    far = ((b[0] - g[0]) ** 2 + (b[1] - g[1]) ** 2) / (cw**2 + ch**2)
    v = 4 / math.pi**2 * (torch.atan(g[2] / g[3]) - torch.atan(b[2] / b[3])) ** 2
    return iou - far - (v / (1 - iou + v)).detach() * v


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("n", [1, 7, 0])
def test_box_by_box(dtype, mode, n):
    b, g = centered(n, 0, dtype), centered(n, 1, dtype)
    result = torch_npu.npu_ciou(b, g, True, False, mode)
    want = table("ciou", b.cpu(), g.cpu(), True, False, mode).reshape(1, n)
    assert result.dtype == dtype and result.shape == (1, n)
    assert_accurate(result, want, want.to(dtype))


def test_corners_and_all_pairs():
    b, g = boxes(6).t().contiguous(), boxes(4, seed=1).t().contiguous()
    result = torch_npu.npu_ciou(b.npu(), g.npu())
    want = table("ciou", b, g, False, True)
    assert result.shape == (4, 6)
    assert_accurate(result, want, want.float())


@pytest.mark.parametrize("flag", [True, False])
def test_difference_of_angles(flag):
    b, g = centered(5), centered(5, 1)
    overlap, angle = torch.ops.npu._npu_ciou(b, g, True, False, 0, flag)
    assert torch.equal(overlap, torch_npu.npu_ciou(b, g, True, False, 0, flag))
    want = table("angle", b.cpu(), g.cpu(), True, False) if flag else torch.zeros(1, 5)
    assert angle.dtype == torch.float32
    assert_accurate(angle, want.double(), want.float())


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("private", [True, False])
def test_gradients(flag, private):
    b, g = centered(9, 0, torch.float64), centered(9, 1, torch.float64)
    mine = [t.clone().requires_grad_() for t in (b, g)]
    theirs = [t.cpu().requires_grad_() for t in (b, g)]
    upstream = torch.randn(9, dtype=torch.float64)
    with settings.override(strict=False):
        call = torch.ops.npu._npu_ciou if private else torch_npu.npu_ciou
        result = call(*mine, True, False, 0, flag)
        result = result[0] if private else result
        (result * upstream.npu()).sum().backward()
    (formula(*theirs) * upstream).sum().backward()
    for m, t in zip(mine, theirs, strict=True):
        torch.testing.assert_close(m.grad.cpu(), t.grad, rtol=1e-6, atol=1e-7)


def test_ascend950():
    b, g = centered(1024, 0, torch.float16), centered(1024, 1)
    with on("A5"):
        result, angle = torch.ops.npu._npu_ciou(b, g, True, False, 0, True)
        assert result.dtype == angle.dtype == torch.float16
        with pytest.raises(
            RuntimeError, match="npu_ciou: argument 'self' must be of a multiple of 1024 boxes.*100"
        ):
            torch_npu.npu_ciou(centered(100), centered(100), True, False)
        with pytest.raises(RuntimeError, match="argument 'is_cross' must be False on Ascend950"):
            torch_npu.npu_ciou(g, g, True)
        with pytest.raises(RuntimeError, match="npu_ciou_backward: argument 'grad' must be off"):
            torch_npu.npu_ciou(g.requires_grad_(), g, True, False).sum().backward()


def test_gradient_needs_the_documented_form():
    with pytest.raises(
        RuntimeError, match="npu_ciou_backward: argument 'is_cross' must be False for the gradient"
    ):
        torch_npu.npu_ciou(centered(3).requires_grad_(), centered(3), True).sum().backward()


def test_bad_angles():
    b = centered(3)
    with pytest.raises(RuntimeError, match="argument 'atan_sub' must be of 3 elements"):
        torch.ops.npu.npu_ciou_backward(make(1, 3), b, b, make(1, 4), True, False, 0)


def test_bad_shape():
    with pytest.raises(
        RuntimeError, match=r"argument 'gtboxes' must be of shape \(4, \*\).*\(3, 3\)"
    ):
        torch_npu.npu_ciou(centered(3), make(3, 3))
