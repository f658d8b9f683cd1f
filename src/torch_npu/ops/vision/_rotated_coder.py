"""What npu_rotated_box_encode and npu_rotated_box_decode share."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops.vision._boxes import FLOATS


def parts(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Centers and sides (B, 2, N) and angles in radians (B, 1, N) of boxes x1, y1, x2, y2 and degrees."""
    low, high = boxes[:, :2], boxes[:, 2:4]
    return (low + high) / 2, high - low, torch.deg2rad(boxes[:, 4:])


def check(anchors: torch.Tensor, other: torch.Tensor, weight: torch.Tensor, name: str) -> None:
    """The rules on both operators' tensors; `name` is the second one's."""
    must.dtype("self", anchors, *FLOATS)
    must.ndim("self", anchors, 3)
    must.shape("self", anchors, (None, 5, None))
    must.same_dtype(name, other, "self", anchors)
    must.dtype("weight", weight, *FLOATS)
    must.shape("weight", weight, (5,))
