"""npu_diou against a loop over boxes; gradients by gradcheck."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make
from tests.ops.vision._reference import boxes, centered, table


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("n", [1, 7, 0])
def test_box_by_box(dtype, mode, n):
    b, g = centered(n, 0, dtype), centered(n, 1, dtype)
    result = torch_npu.npu_diou(b, g, True, False, mode)
    want = table("diou", b.cpu(), g.cpu(), True, False, mode).reshape(1, n)
    assert result.dtype == dtype and result.shape == (1, n)
    assert_accurate(result, want, want.to(dtype))


@pytest.mark.parametrize("mode", [0, 1])
def test_corners_and_all_pairs(mode):
    b, g = boxes(6).t().contiguous(), boxes(4, seed=1).t().contiguous()
    result = torch_npu.npu_diou(b.npu(), g.npu(), is_cross=True, mode=mode)
    want = table("diou", b, g, False, True, mode)
    assert result.shape == (4, 6)
    assert_accurate(result, want, want.float())


def test_non_contiguous():
    b = centered(8)[:, ::2]
    assert torch.equal(torch_npu.npu_diou(b, b, True), torch_npu.npu_diou(b.clone(), b, True))


def test_gradients():
    b, g = centered(5, 0, torch.float64), centered(5, 1, torch.float64)
    gradcheck(lambda *a: torch_npu.npu_diou(*a, True), b.requires_grad_(), g.requires_grad_())


def test_gradient_of_half_precision():
    b = centered(3, 0, torch.float16).requires_grad_()
    torch_npu.npu_diou(b, centered(3, 1, torch.float16), True).sum().backward()
    assert b.grad.dtype == torch.float16 and b.grad.isfinite().all()


def test_gradient_of_equal_boxes_is_shared():
    """Where corners coincide, minimum and maximum pass half of the gradient to either side, as torch's do."""
    b = torch.tensor([[2.0], [3], [4], [5]])
    mine, theirs = b.npu().requires_grad_(), b.clone().requires_grad_()
    torch_npu.npu_diou(mine, b.npu(), True).sum().backward()
    x, y, w, h = theirs
    w2, h2 = w / 2, h / 2
    iw = torch.minimum(x + w2, b[0] + 2) - torch.maximum(x - w2, b[0] - 2)
    ih = torch.minimum(y + h2, b[1] + 2.5) - torch.maximum(y - h2, b[1] - 2.5)
    (iw * ih / (w * h + 20 - iw * ih)).sum().backward()
    torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


@pytest.mark.parametrize(
    "name,form",
    [("is_cross", (True, True, 0)), ("trans", (False, False, 0)), ("mode", (True, False, 1))],
)
def test_gradient_needs_the_documented_form(name, form):
    b = centered(3).requires_grad_()
    result = torch_npu.npu_diou(b, centered(3, 1), *form)
    with pytest.raises(
        RuntimeError, match=f"npu_diou_backward: argument '{name}' must be .* gradient"
    ):
        result.sum().backward()


def test_bad_shape():
    with pytest.raises(RuntimeError, match=r"argument 'self' must be of shape \(4, \*\).*\(3, 4\)"):
        torch_npu.npu_diou(make(3, 4), make(3, 4))


def test_bad_dimensions():
    with pytest.raises(RuntimeError, match="argument 'self' must be a tensor of 2 dimensions"):
        torch_npu.npu_diou(make(4), make(4))
