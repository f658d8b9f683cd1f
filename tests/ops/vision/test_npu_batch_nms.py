"""npu_batch_nms against plain loops over images and classes."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.support import make
from tests.ops.vision._reference import boxes, nms


def reference(rows, scores, least, threshold, per_class, total):
    """[(box, score, class), ...] of each image; rows (B, N, q, 4)."""
    out = []
    for image, marks in zip(rows.float(), scores.float(), strict=True):
        found = []
        for c in range(marks.shape[1]):
            own = image[:, c if image.shape[1] > 1 else 0].tolist()
            column = marks[:, c].tolist()
            for i in nms(own, column, threshold, least=least, limit=per_class):
                found.append((own[i], column[i], c))
        out.append(sorted(found, key=lambda f: -f[1])[:total])
    return out


def inputs(b, n, q, c, dtype=torch.float32):
    rows = boxes(b * n * q).reshape(b, n, q, 4).to(dtype)
    scores = torch.rand(b, n, c, generator=torch.Generator().manual_seed(3)).to(dtype)
    return rows, scores


def compare(results, want, total, dtype):
    out_boxes, out_scores, out_classes, count = (r.cpu() for r in results)
    assert out_boxes.shape == (len(want), total, 4) and count.dtype == torch.int32
    assert out_boxes.dtype == out_scores.dtype == out_classes.dtype == dtype
    assert count.tolist() == [len(w) for w in want]
    for b, found in enumerate(want):
        k = len(found)
        assert out_boxes[b, :k].tolist() == [f[0] for f in found]
        assert out_scores[b, :k].tolist() == [f[1] for f in found]
        assert out_classes[b, :k].tolist() == [f[2] for f in found]
        assert not out_boxes[b, k:].any() and not out_scores[b, k:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("per_class,total", [(100, 200), (4, 7), (1, 1)])
def test_plain_loops(dtype, q, per_class, total):
    rows, scores = inputs(2, 40, q, 3, dtype)
    results = torch_npu.npu_batch_nms(rows.npu(), scores.npu(), 0.2, 0.3, per_class, total)
    compare(results, reference(rows, scores, 0.2, 0.3, per_class, total), total, dtype)


@pytest.mark.parametrize("frame", [False, True])
def test_transposed_boxes(frame):
    rows, scores = inputs(2, 30, 2, 2)
    turned = rows.permute(0, 2, 3, 1).contiguous()
    results = torch_npu.npu_batch_nms(turned.npu(), scores.npu(), 0.1, 0.4, 9, 12, frame, True)
    compare(results, reference(rows, scores, 0.1, 0.4, 9, 12), 12, torch.float32)


def test_ties_by_lower_index_and_class():
    rows = torch.zeros(1, 3, 1, 4)
    rows[0, :, 0] = torch.tensor([[0.0, 0, 1, 1], [5, 5, 6, 6], [0, 0, 1, 1]])
    results = torch_npu.npu_batch_nms(rows.npu(), torch.full((1, 3, 2), 0.5).npu(), 0.1, 0.5, 9, 9)
    assert results[3].tolist() == [4]
    assert results[2][0, :4].tolist() == [0, 0, 1, 1]
    assert results[0][0, :4, 0].tolist() == [0, 5, 0, 5]


def test_nothing_above_the_threshold():
    rows, scores = inputs(2, 5, 1, 2)
    results = torch_npu.npu_batch_nms(rows.npu(), scores.npu(), 2.0, 0.5, 3, 4)
    assert results[3].tolist() == [0, 0] and not results[0].any()


def test_images_without_scores():
    rows, scores = inputs(3, 5, 1, 2)
    results = torch_npu.npu_batch_nms(rows.npu(), scores[:2].npu(), 0.1, 0.5, 3, 4)
    assert results[0].shape == (3, 4, 4) and results[3][2].item() == 0
    compare(
        [r[:2] for r in results], reference(rows[:2], scores[:2], 0.1, 0.5, 3, 4), 4, torch.float32
    )


def test_boxes_with_corners_swapped_overlap_nothing():
    rows = torch.tensor([[9.0, 9, 1, 1], [9, 9, 1, 1]]).reshape(1, 2, 1, 4)
    results = torch_npu.npu_batch_nms(rows.npu(), torch.ones(1, 2, 1).npu(), 0.1, 0.0, 3, 4)
    assert results[3].item() == 2


def test_bad_shapes():
    with pytest.raises(
        RuntimeError, match=r"argument 'self' must be of shape \(B, N, q, 4\).*\(1, 3, 1, 5\)"
    ):
        torch_npu.npu_batch_nms(make(1, 3, 1, 5), make(1, 3, 2), 0.1, 0.5, 3, 4)
    with pytest.raises(
        RuntimeError, match=r"argument 'scores' must be of shape \(\*, 3, \*\).*\(1, 4, 2\)"
    ):
        torch_npu.npu_batch_nms(make(1, 3, 1, 4), make(1, 4, 2), 0.1, 0.5, 3, 4)
    with pytest.raises(
        RuntimeError, match="argument 'self' must be of q = 1 or 3 sets of boxes.*2"
    ):
        torch_npu.npu_batch_nms(make(1, 3, 2, 4), make(1, 3, 3), 0.1, 0.5, 3, 4)


def test_no_boxes():
    with pytest.raises(RuntimeError, match="argument 'self' must be of at least one box"):
        torch_npu.npu_batch_nms(make(1, 0, 1, 4), make(1, 0, 2), 0.1, 0.5, 3, 4)


def test_bad_numbers():
    rows, scores = (t.npu() for t in inputs(1, 3, 1, 1))
    with pytest.raises(RuntimeError, match="argument 'max_total_size' must be positive.*0"):
        torch_npu.npu_batch_nms(rows, scores, 0.1, 0.5, 3, 0)
    with pytest.raises(RuntimeError, match=r"argument 'iou_threshold' must be in \[0, 1\].*2"):
        torch_npu.npu_batch_nms(rows, scores, 0.1, 2.0, 3, 4)


def test_ascend950_takes_less():
    rows, scores = torch.rand(2, 3, 1, 4).npu(), torch.rand(2, 3, 2).npu()
    with as_chip("Ascend950"):
        with pytest.raises(RuntimeError, match=r"'scores' must be of shape \(2, 3, 2\)"):
            torch_npu.npu_batch_nms(rows, scores[:1], 0.1, 0.5, 3, 4)
        with pytest.raises(RuntimeError, match="'max_total_size' must be at most 1000.*1001"):
            torch_npu.npu_batch_nms(rows, scores, 0.1, 0.5, 3, 1001)
