"""npu_nms_v4 against a plain loop."""

import pytest
import torch

import torch_npu
from tests.ops.support import make
from tests.ops.vision._reference import boxes, nms


def run(rows, scores, size, iou, least, **options):
    bounds = [torch.tensor(v).npu() for v in (iou, least)]
    return torch_npu.npu_nms_v4(rows.npu(), scores.npu(), size, *bounds, **options)


def scores_of(n, seed=0):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("size", [1, 10, 400])
def test_plain_loop(dtype, threshold, size):
    rows, scores = boxes(200).to(dtype), scores_of(200).to(dtype)
    index, count = run(rows, scores, size, threshold, 0.2)
    want = nms(rows.float().tolist(), scores.tolist(), threshold, least=0.2, limit=size)
    assert index.dtype == count.dtype == torch.int32
    assert index.shape == (size,) and count.shape == ()
    assert index[: count.item()].tolist() == want


def test_many_boxes():
    rows, scores = boxes(700, span=600), scores_of(700)
    index, count = run(rows, scores, 700, 0.1, 0.0)
    assert index[: count.item()].tolist() == nms(rows.tolist(), scores.tolist(), 0.1, least=0.0)


@pytest.mark.parametrize("pad,filler", [(True, 0), (False, -1)])
def test_padding(pad, filler):
    index, count = run(
        boxes(3), torch.tensor([0.1, 0.9, 0.2]), 5, 1.0, 0.15, pad_to_max_output_size=pad
    )
    assert count.item() == 2 and index.tolist() == [1, 2, filler, filler, filler]


def test_ties_by_lower_index():
    rows = boxes(1).repeat(5, 1)
    rows[3] += 1000
    index, count = run(rows, torch.full((5,), 0.5), 5, 0.5, 0.0)
    assert index[: count.item()].tolist() == [0, 3]


def test_any_two_opposite_corners():
    rows, scores = boxes(100), scores_of(100)
    flipped = rows.clone()
    flipped[::2] = rows[::2][:, [2, 1, 0, 3]]
    flipped[1::2] = rows[1::2][:, [2, 3, 0, 1]]
    want = run(rows, scores, 100, 0.3, 0.0)
    assert all(
        torch.equal(a, b) for a, b in zip(run(flipped, scores, 100, 0.3, 0.0), want, strict=True)
    )


def test_degenerate_boxes():
    rows = torch.tensor([[0.0, 0, 0, 5], [0, 0, 0, 5], [0, 0, 5, 5]])
    _, count = run(rows, torch.tensor([0.9, 0.8, 0.7]), 3, 0.0, 0.0)
    assert count.item() == 3


def test_empty():
    index, count = run(torch.zeros(0, 4), torch.zeros(0), 2, 0.5, 0.0)
    assert count.item() == 0 and index.tolist() == [-1, -1]


def test_bad_threshold():
    with pytest.raises(RuntimeError, match=r"argument 'iou_threshold' must be in \[0, 1\].*1.5"):
        run(boxes(3), scores_of(3), 3, 1.5, 0.0)
    with pytest.raises(RuntimeError, match="argument 'iou_threshold' must be 0-dimensional"):
        torch_npu.npu_nms_v4(make(3, 4), make(3), 3, make(1), make())


def test_bad_scores():
    with pytest.raises(RuntimeError, match=r"argument 'scores' must be of shape \(3\).*\(4,\)"):
        run(boxes(3), scores_of(4), 3, 0.5, 0.0)


@pytest.mark.parametrize("size", [-1, float("inf"), float("nan"), 2**31])
def test_bad_sizes(size):
    with pytest.raises(
        RuntimeError, match="argument 'max_output_size' must be at least 0 and an int32"
    ):
        run(boxes(3), scores_of(3), size, 0.5, 0.0)
