"""npu_giou against a loop over boxes; gradients by gradcheck."""

import pytest
import torch

import torch_npu
from softnpu import settings
from tests.ops.support import assert_accurate, gradcheck, make
from tests.ops.vision._reference import boxes, centered, table


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("n", [1, 7, 0])
def test_box_by_box(dtype, n):
    b, g = centered(n, 0, dtype), centered(n, 1, dtype)
    result = torch_npu.npu_giou(b, g, True, False, 0)
    want = table("giou", b.cpu(), g.cpu(), True, False, 0).reshape(n, 1)
    assert result.dtype == dtype and result.shape == (n, 1)
    assert_accurate(result, want, want.to(dtype))


def test_corners_and_all_pairs():
    b, g = boxes(6).t().contiguous(), boxes(4, seed=1).t().contiguous()
    with settings.override(strict=False):  # the host code knows one form, the page more
        result = torch_npu.npu_giou(b.npu(), g.npu(), is_cross=True, mode=1)
    want = table("giou", b, g, False, True, 1)
    assert result.shape == (4, 6)
    assert_accurate(result, want, want.float())


def test_rows_instead_of_columns():
    b, g = centered(7, 0), centered(7, 1)
    turned = torch_npu.npu_giou(b.t(), g.t(), True)
    assert torch.equal(turned, torch_npu.npu_giou(b, g, True))


def test_mixed_dtypes():
    b, g = centered(3), centered(3, 1)
    assert torch_npu.npu_giou(b.half(), g, True).dtype == torch.float16


def test_equal_and_empty_boxes():
    b = torch.tensor([[2.0, 1], [3, 1], [4, 0], [5, 0]]).npu()
    assert torch_npu.npu_giou(b, b, True).flatten().tolist() == pytest.approx([1, 0])


@pytest.mark.parametrize("turned", [False, True])
def test_gradients(turned):
    b, g = centered(5, 0, torch.float64), centered(5, 1, torch.float64)
    b, g = (b.t(), g.t()) if turned else (b, g)
    leaves = [t.contiguous().requires_grad_() for t in (b, g)]
    gradcheck(lambda *a: torch_npu.npu_giou(*a, True), *leaves)


def test_named_gradient_of_disjoint_boxes():
    """The IoU part has no gradient there; the enclosing box still has."""
    b = torch.tensor([[0.0], [0], [2], [2]]).npu()
    g = torch.tensor([[10.0], [0], [2], [2]]).npu()
    db, dg = torch.ops.npu.npu_giou_backward(torch.ones(1, 1).npu(), b, g, True, False, 0)
    # union / around = 8 / (12 * 2): moving b right by t shrinks the box around by 2 t
    assert db[0].item() == pytest.approx(8 / 24 / 12, rel=1e-5)
    assert torch.allclose(db[0], -dg[0]) and db[1].item() == pytest.approx(0)


@pytest.mark.parametrize(
    "form,message",
    [
        ((False, False, 0), "'trans' must be True"),
        ((True, True, 0), "'is_cross' must be False"),
        ((True, False, 1), "'mode' must be 0"),
    ],
)
def test_the_one_form_of_the_host_code(form, message):
    b, g = centered(3), centered(3, 1)
    with pytest.raises(NotImplementedError, match=f"npu_giou: argument {message}"):
        torch_npu.npu_giou(b, g, *form)
    with pytest.raises(NotImplementedError, match=f"npu_giou_backward: argument {message}"):
        torch.ops.npu.npu_giou_backward(torch.ones(3, 1).npu(), b, g, *form)


def test_no_side_of_four():
    with pytest.raises(
        RuntimeError, match=r"argument 'self' must be of shape \(4, n\) or \(n, 4\).*\(5, 3\)"
    ):
        torch_npu.npu_giou(make(5, 3), make(5, 3), True)


def test_other_number_of_boxes():
    with pytest.raises(
        RuntimeError, match=r"argument 'gtboxes' must be of shape \(4, 3\).*\(4, 5\)"
    ):
        torch_npu.npu_giou(centered(3), centered(5), True)
