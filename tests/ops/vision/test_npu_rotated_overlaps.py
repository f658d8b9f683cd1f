"""npu_rotated_overlaps against polygons."""

import math

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.support import make
from tests.ops.vision._polygons import polygons, rotated, shared


def check(a, b, trans=False, tolerance=1e-6):
    """a (n, 5) with b (m, 5): an error of at most `tolerance` of the larger area."""
    result = torch_npu.npu_rotated_overlaps(a[None].npu(), b[None].npu(), trans)[0].cpu()
    p, q = polygons(a, trans), polygons(b, trans)
    want = shared(p[:, None], q[None, :])
    scale = np.maximum.outer([g.area for g in p], [g.area for g in q])
    error = np.abs(result.double().numpy() - want) / np.maximum(scale, 1e-9)
    assert result.shape == want.shape
    assert error.max(initial=0) <= tolerance, error.max()
    return result


def test_ten_thousand_random_pairs():
    result = check(rotated(100), rotated(100, seed=1))
    assert (result > 0).sum() > 2000 and (result == 0).sum() > 1000


@pytest.mark.parametrize("t", [0.0, 90.0, 180.0, 270.0, -90.0, 360.0])
@pytest.mark.parametrize("s", [0.0, 90.0, 180.0])
def test_right_angles(t, s):
    a, b = rotated(12, span=20), rotated(12, seed=1, span=20)
    a[:, 4], b[:, 4] = t, s
    check(a, b)


@pytest.mark.parametrize("t", [0.0, 30.0, 45.0, 90.0, 133.7, 180.0])
def test_touching_contained_and_equal(t):
    """Boxes of one angle: beside, at a corner, inside, equal, across, and turned by a quarter or a half."""
    base = torch.tensor([10.0, 20.0, 8.0, 4.0, t])
    c, s = math.cos(math.radians(t)), math.sin(math.radians(t))
    side = base + torch.tensor([8 * c, 8 * s, 0, 0, 0])
    corner = base + torch.tensor([8 * c - 4 * s, 8 * s + 4 * c, 0, 0, 0])
    inside = torch.tensor([10.0, 20.0, 4.0, 2.0, t])
    flush = torch.tensor([10.0 + 2 * c, 20.0 + 2 * s, 4.0, 4.0, t])
    across = torch.tensor([10.0, 20.0, 2.0, 30.0, t])
    others = torch.stack([side, corner, inside, base, flush, across])
    turned = base + torch.tensor([[0, 0, 0, 0, 90.0], [0, 0, 0, 0, 180.0], [0, 0, 0, 0, 45.0]])
    result = check(base[None], torch.cat([others, turned]))[0]
    want = [0, 0, 8, 32, 16, 8, 16, 32]
    assert torch.allclose(result[:8], torch.tensor(want, dtype=torch.float32), atol=2e-4)


def test_degenerate_boxes_share_nothing():
    a = torch.tensor([[5.0, 5, 0, 10, 30], [5, 5, 10, 0, 0], [5, 5, 0, 0, 45], [5, 5, 4, 4, 10]])
    result = torch_npu.npu_rotated_overlaps(a[None].npu(), a[None].npu())[0].cpu()
    assert (result[:3] == 0).all() and (result[:, :3] == 0).all()
    assert result[3, 3] == pytest.approx(16)


def test_needles_far_from_the_origin():
    a, b = rotated(20, span=10), rotated(20, seed=1, span=10)
    a[:, 2], b[:, 3] = 1e-3, 1e3
    a[:, :2] += 5000
    b[:, :2] += 5000
    check(a, b)


def test_corners_form():
    a, b = rotated(15), rotated(15, seed=1)
    for box in (a, b):
        box[:, 2:4] += box[:, :2]
    check(a, b, trans=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_batches_and_dtypes(dtype):
    a, b = rotated(8).reshape(2, 4, 5).to(dtype), rotated(6, seed=1).reshape(2, 3, 5).to(dtype)
    result = torch_npu.npu_rotated_overlaps(a.npu(), b.npu())
    assert result.dtype == dtype and result.shape == (2, 4, 3)
    for i in range(2):
        want = torch.from_numpy(shared(polygons(a[i])[:, None], polygons(b[i])[None, :]))
        torch.testing.assert_close(result[i].cpu(), want.to(dtype), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 3), (2, 3, 0)])
def test_empty(shape):
    b, n, k = shape
    result = torch_npu.npu_rotated_overlaps(make(b, n, 5, low=0), make(b, k, 5, low=0))
    assert result.shape == shape


def test_sides_count_by_their_magnitudes():
    boxes = rotated(3)
    turned = boxes.clone()
    turned[1, 3] *= -1
    one, other = (
        torch_npu.npu_rotated_overlaps(b[None].npu(), boxes[None].npu()) for b in (boxes, turned)
    )
    assert torch.equal(one, other)


def test_layout_of_the_page():
    with pytest.raises(
        RuntimeError, match=r"argument 'self' must be of shape \(\*, \*, 5\).*\(1, 5, 3\)"
    ):
        torch_npu.npu_rotated_overlaps(make(1, 5, 3), make(1, 5, 3))


def test_other_batch():
    with pytest.raises(RuntimeError, match="argument 'query_boxes' must be a batch of 2.*3"):
        torch_npu.npu_rotated_overlaps(make(2, 4, 5, low=0), make(3, 4, 5, low=0))


def test_a_small_box_in_a_large_one():
    a = torch.tensor([[100.0, 100.0, 1e4, 1e4, 17.0]])
    b = torch.tensor([[90.0, 80.0, 1e-3, 2e-3, 40.0], [90.0, 80.0, 1e-3, 1e5, 40.0]])
    for one, other in ((a, b), (b, a)):
        result = torch_npu.npu_rotated_overlaps(one[None].npu(), other[None].npu()).flatten()
        want = shared(polygons(one)[:, None], polygons(other)[None, :]).flatten()
        assert result.tolist() == pytest.approx(want.tolist(), rel=1e-5)


def test_disjoint_boxes_share_exactly_nothing():
    a, b = rotated(60), rotated(60, seed=1)
    b[:, 0] += 100
    assert not torch_npu.npu_rotated_overlaps(a[None].npu(), b[None].npu()).any()
