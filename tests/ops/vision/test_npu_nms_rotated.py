"""npu_nms_rotated against a plain loop over polygons."""

import pytest
import torch

import torch_npu
from tests.ops.support import make
from tests.ops.vision._polygons import polygons, rotated
from tests.ops.vision._reference import nms


def reference(boxes, scores, threshold, least=0.0, limit=None, mode=0):
    shapes = polygons(boxes, mode == 1, -1.0 if mode == 1 else 1.0)

    def overlap(i, j):
        common = shapes[i].intersection(shapes[j]).area
        return common / (shapes[i].area + shapes[j].area - common)

    places = range(len(boxes))
    return nms(places, scores.tolist(), threshold, overlap, least, limit)


def inputs(n, mode=0, seed=0):
    boxes = rotated(n, seed)
    if mode == 1:
        boxes[:, 2:4] += boxes[:, :2]
    return boxes, torch.rand(n, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_plain_loop(mode, threshold, dtype):
    boxes, scores = inputs(60, mode)
    boxes, scores = boxes.to(dtype), scores.to(dtype)
    index, count = torch_npu.npu_nms_rotated(boxes.npu(), scores.npu(), threshold, mode=mode)
    assert index.tolist() == reference(boxes, scores, threshold, mode=mode)
    assert index.dtype == count.dtype == torch.int32 and count.tolist() == [len(index)]


def test_several_blocks():
    boxes, scores = inputs(300)
    boxes[:, :2] *= 4
    index, _ = torch_npu.npu_nms_rotated(boxes.npu(), scores.npu(), 0.05)
    assert index.tolist() == reference(boxes, scores, 0.05)


@pytest.mark.parametrize("limit", [0, 1, 5, 1000])
def test_thresholds_of_scores_and_limit(limit):
    boxes, scores = inputs(50)
    index, count = torch_npu.npu_nms_rotated(boxes.npu(), scores.npu(), 0.2, 0.3, limit)
    want = reference(boxes, scores, 0.2, 0.3, limit)
    assert index.tolist() == want and count.item() == len(want)


def test_ties_by_lower_index():
    boxes = rotated(1).repeat(4, 1)
    boxes[2, 0] += 1000
    index, _ = torch_npu.npu_nms_rotated(boxes.npu(), torch.full((4,), 0.5).npu(), 0.5)
    assert index.tolist() == [0, 2]


def test_a_threshold_that_is_met_exactly_keeps():
    boxes = torch.tensor([[0.0, 0, 2, 2, 0], [1, 0, 2, 2, 0]])  # IoU = 2 / 6
    scores = torch.tensor([0.9, 0.8])
    for threshold, kept in ((1 / 3 + 1e-9, 2), (1 / 3 - 1e-9, 1)):
        assert torch_npu.npu_nms_rotated(boxes.npu(), scores.npu(), threshold)[1].item() == kept


def test_boxes_without_area_overlap_nothing():
    """A side of 0, or just one negative side; two negative sides span the same box."""
    boxes = torch.tensor([[5.0, 5, 4, 4, 0], [5, 5, 0, 4, 0], [5, 5, -4, 4, 0], [5, 5, -4, -4, 0]])
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6])
    index, _ = torch_npu.npu_nms_rotated(boxes.npu(), scores.npu(), 0.1)
    assert index.tolist() == [0, 1, 2]


def test_empty():
    index, count = torch_npu.npu_nms_rotated(make(0, 5), make(0), 0.1)
    assert index.shape == (0,) and count.tolist() == [0]


def test_bad_shapes():
    with pytest.raises(RuntimeError, match=r"argument 'self' must be of shape \(\*, 5\).*\(3, 4\)"):
        torch_npu.npu_nms_rotated(make(3, 4), make(3), 0.1)
    with pytest.raises(RuntimeError, match=r"argument 'scores' must be of shape \(3\).*\(2,\)"):
        torch_npu.npu_nms_rotated(make(3, 5), make(2), 0.1)


def test_bad_mode():
    with pytest.raises(RuntimeError, match="argument 'mode' must be 0 or 1"):
        torch_npu.npu_nms_rotated(make(3, 5), make(3), 0.1, mode=2)
