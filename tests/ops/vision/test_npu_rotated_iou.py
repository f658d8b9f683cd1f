"""npu_rotated_iou against polygons."""

import math

import pytest
import shapely
import torch

import torch_npu
from tests.ops.support import make
from tests.ops.vision._polygons import polygons, rotated, shared


def reference(a, b, mode=0, trans=False):
    p, q = polygons(a, trans)[:, None], polygons(b, trans)[None, :]
    common = shared(p, q)
    whole = shapely.area(q) if mode == 1 else shapely.area(p) + shapely.area(q) - common
    return torch.from_numpy(common / whole)


@pytest.mark.parametrize("mode", [0, 1])
def test_ten_thousand_random_pairs(mode):
    a, b = rotated(100), rotated(100, seed=1)
    result = torch_npu.npu_rotated_iou(a[None].npu(), b[None].npu(), mode=mode)[0].cpu()
    torch.testing.assert_close(result.double(), reference(a, b, mode), rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", [0, 1])
def test_one_to_one(mode):
    a, b = rotated(6, span=20).reshape(2, 3, 5), rotated(6, seed=1, span=20).reshape(2, 3, 5)
    result = torch_npu.npu_rotated_iou(a.npu(), b.npu(), mode=mode, is_cross=False).cpu()
    want = torch.stack([reference(p, q, mode).diagonal() for p, q in zip(a, b, strict=True)])
    assert result.shape == (2, 3)
    torch.testing.assert_close(result.double(), want, rtol=0, atol=1e-6)


def test_corners_form():
    a, b = rotated(9), rotated(9, seed=1)
    for box in (a, b):
        box[:, 2:4] += box[:, :2]
    result = torch_npu.npu_rotated_iou(a[None].npu(), b[None].npu(), True)[0].cpu()
    torch.testing.assert_close(result.double(), reference(a, b, 0, True), rtol=0, atol=1e-6)


def test_equal_touching_contained_degenerate():
    a = torch.tensor([[5.0, 5, 4, 2, 30]])
    c, s = math.cos(math.pi / 6), math.sin(math.pi / 6)
    b = torch.tensor(
        [[5.0, 5, 4, 2, 210], [5 + 4 * c, 5 + 4 * s, 4, 2, 30], [5, 5, 2, 1, 30], [5, 5, 0, 2, 30]]
    )
    result = torch_npu.npu_rotated_iou(a[None].npu(), b[None].npu())[0, 0]
    assert result.tolist() == pytest.approx([1, 0, 0.25, 0], abs=1e-6)
    nothing = torch_npu.npu_rotated_iou(b[None, 3:].npu(), b[None, 3:].npu(), mode=1)
    assert nothing.item() == 0


def test_half_precision():
    a, b = rotated(6).half(), rotated(5, seed=1).half()
    result = torch_npu.npu_rotated_iou(a[None].npu(), b[None].npu())[0]
    assert result.dtype == torch.float16
    torch.testing.assert_close(result.cpu(), reference(a, b).half(), rtol=1e-3, atol=1e-6)


def test_thresholds_change_nothing():
    a, b = rotated(6)[None].npu(), rotated(6, seed=1)[None].npu()
    eased = torch_npu.npu_rotated_iou(a, b, v_threshold=1e-5, e_threshold=1e-5)
    assert torch.equal(eased, torch_npu.npu_rotated_iou(a, b))


def test_negative_threshold():
    a = rotated(2)[None].npu()
    with pytest.raises(RuntimeError, match="argument 'e_threshold' must be at least 0.*-1.0"):
        torch_npu.npu_rotated_iou(a, a, e_threshold=-1.0)


def test_too_many_queries():
    with pytest.raises(
        RuntimeError, match="'query_boxes' must be of at most 1600 boxes an image.*1601"
    ):
        torch_npu.npu_rotated_iou(make(1, 2, 5, low=0), make(1, 1601, 5, low=0))


def test_one_to_one_of_other_number():
    with pytest.raises(
        RuntimeError, match=r"'query_boxes' must be of shape \(1, 3, 5\).*\(1, 2, 5\)"
    ):
        torch_npu.npu_rotated_iou(make(1, 3, 5, low=0), make(1, 2, 5, low=0), is_cross=False)


def test_bad_mode():
    a = rotated(2)[None].npu()
    with pytest.raises(RuntimeError, match="argument 'mode' must be 0 or 1"):
        torch_npu.npu_rotated_iou(a, a, mode=2)
