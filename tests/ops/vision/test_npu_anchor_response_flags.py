"""npu_anchor_response_flags against a loop over boxes."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import make


def reference(boxes, size, stride, anchors):
    height, width = size
    flags = [0] * (height * width * anchors)
    for x1, y1, x2, y2 in boxes.double().tolist():
        i = min(max(math.floor((x1 + x2) / 2 / stride[0]), 0), width - 1)
        j = min(max(math.floor((y1 + y2) / 2 / stride[1]), 0), height - 1)
        for a in range(anchors):
            flags[(j * width + i) * anchors + a] = 1
    return flags


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    "n,size,stride,anchors",
    [
        (20, (6, 9), (8, 16), 3),
        (1, (1, 1), (4, 4), 1),
        (0, (3, 2), (4, 4), 2),
        (5, (4, 4), (2, 8), 0),
    ],
)
def test_flags(dtype, n, size, stride, anchors):
    boxes = make(n, 4, low=0, high=64, dtype=dtype)
    result = torch_npu.npu_anchor_response_flags(boxes, size, stride, anchors)
    assert result.dtype == torch.uint8
    assert result.tolist() == reference(boxes.cpu(), size, stride, anchors)


def test_centers_outside_count_for_the_border():
    boxes = torch.tensor([[-50.0, -50, -40, -40], [500, 3, 600, 4], [7, 1e30, 8, 1e30]])
    result = torch_npu.npu_anchor_response_flags(boxes.npu(), [4, 4], [8, 8], 2)
    assert result.tolist() == reference(boxes, (4, 4), (8, 8), 2) and result.sum().item() == 6


def test_bad_shape():
    with pytest.raises(RuntimeError, match=r"argument 'self' must be of shape \(\*, 4\).*\(3, 5\)"):
        torch_npu.npu_anchor_response_flags(make(3, 5), [4, 4], [8, 8], 2)


def test_bad_stride():
    with pytest.raises(RuntimeError, match=r"argument 'stride' must be positive.*\[8, 0\]"):
        torch_npu.npu_anchor_response_flags(make(3, 4), [4, 4], [8, 0], 2)


def test_bad_dtype():
    with pytest.raises(RuntimeError, match="argument 'self' must be of dtype .*int32"):
        torch_npu.npu_anchor_response_flags(make(3, 4, dtype=torch.int32), [4, 4], [8, 8], 2)


def test_negative_anchors():
    with pytest.raises(RuntimeError, match="argument 'num_base_anchors' must be at least 0.*-1"):
        torch_npu.npu_anchor_response_flags(make(3, 4), [4, 4], [8, 8], -1)
