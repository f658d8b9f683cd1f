"""npu_yolo_boxes_encode against a loop over boxes."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make
from tests.ops.vision._reference import boxes


def reference(anchors, truth, stride):
    rows = []
    for p, g, s in zip(
        anchors.double().tolist(), truth.double().tolist(), stride.tolist(), strict=True
    ):
        row = []
        for a in (0, 1):
            apart = (g[a] + g[a + 2] - p[a] - p[a + 2]) / 2
            row.append(min(max(apart / s + 0.5, 1e-6), 1 - 1e-6))
        for a in (0, 1):
            ratio = (g[a + 2] - g[a]) / (p[a + 2] - p[a])
            row.append(math.log(min(max(ratio, 1e-6), 65504)))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 4)


def inputs(n, dtype=torch.float32):
    stride = torch.randint(
        8, 64, (n,), dtype=torch.int32, generator=torch.Generator().manual_seed(0)
    )
    return boxes(n).to(dtype), boxes(n, seed=1).to(dtype), stride


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("n", [9, 1, 0])
def test_targets(dtype, n):
    anchors, truth, stride = inputs(n, dtype)
    result = torch_npu.npu_yolo_boxes_encode(anchors.npu(), truth.npu(), stride.npu())
    want = reference(anchors, truth, stride)
    assert result.dtype == dtype and result.shape == (n, 4)
    assert_accurate(result, want, want.to(dtype), slack=1e-5)


def test_performance_mode_rounds_the_boxes():
    anchors, truth, stride = inputs(50)
    result = torch_npu.npu_yolo_boxes_encode(anchors.npu(), truth.npu(), stride.npu(), True).cpu()
    want = reference(anchors.half(), truth.half(), stride)
    torch.testing.assert_close(result.double(), want, rtol=1e-5, atol=1e-5)
    assert (result.double() - reference(anchors, truth, stride)).abs().max() > 1e-5


def test_clipped_ratios():
    anchors = torch.tensor([[0.0, 0, 1e-5, 4]])
    truth = torch.tensor([[0.0, 0, 100, -4]])
    stride = torch.tensor([8], dtype=torch.int32)
    result = torch_npu.npu_yolo_boxes_encode(anchors.npu(), truth.npu(), stride.npu())[0]
    assert result[2:].tolist() == pytest.approx([math.log(65504), math.log(1e-6)], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8])
def test_short_strides(dtype):
    anchors, truth, stride = (t.npu() for t in inputs(4))
    short = torch_npu.npu_yolo_boxes_encode(anchors, truth, stride.to(dtype))
    assert torch.equal(short, torch_npu.npu_yolo_boxes_encode(anchors, truth, stride))


def test_long_strides():
    anchors, truth, stride = (t.npu() for t in inputs(4))
    with pytest.raises(
        RuntimeError, match="npu_yolo_boxes_encode: argument 'stride' must be of dtype .*int64"
    ):
        torch_npu.npu_yolo_boxes_encode(anchors, truth, stride.long())


def test_too_many_boxes():
    rows = torch.zeros(20481, 4).npu()
    with pytest.raises(RuntimeError, match="argument 'self' must be of at most 20480 boxes.*20481"):
        torch_npu.npu_yolo_boxes_encode(rows, rows, torch.ones(20481, dtype=torch.int32).npu())


def test_bad_shapes():
    stride = torch.ones(3, dtype=torch.int32).npu()
    with pytest.raises(
        RuntimeError, match=r"argument 'gt_bboxes' must be of shape \(3, 4\).*\(2, 4\)"
    ):
        torch_npu.npu_yolo_boxes_encode(make(3, 4), make(2, 4), stride)
    with pytest.raises(RuntimeError, match=r"argument 'stride' must be of shape \(2\).*\(3,\)"):
        torch_npu.npu_yolo_boxes_encode(make(2, 4), make(2, 4), stride)


def test_strides_of_one_as_bools():
    anchors, truth = torch.rand(3, 4).cumsum(1).npu(), torch.rand(3, 4).cumsum(1).npu()
    ones = torch.ones(3, dtype=torch.int32).npu()
    want = torch_npu.npu_yolo_boxes_encode(anchors, truth, ones)
    assert torch.equal(torch_npu.npu_yolo_boxes_encode(anchors, truth, ones.bool()), want)
