"""Encoding boxes relative to others, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu.contrib._checks import require
from torch_npu.contrib._names import torch_npu

__all__ = [
    "npu_bbox_coder_decode_xywh2xyxy",
    "npu_bbox_coder_encode_xyxy2xywh",
    "npu_bbox_coder_encode_yolo",
]


def _pair(
    function: str, boxes: torch.Tensor, name: str, others: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in float32; as many of one as of the other, with four numbers each."""
    require(
        boxes.size(0) == others.size(0), function, name, f"{boxes.size(0)} boxes", others.size(0)
    )
    for argument, tensor in (("bboxes", boxes), (name, others)):
        shape = tuple(tensor.shape)
        require(tensor.size(-1) == 4, function, argument, "of shape (n, 4)", shape)
    return boxes.float(), others.float()


def npu_bbox_coder_encode_yolo(
    bboxes: torch.Tensor, gt_bboxes: torch.Tensor, stride: torch.Tensor
) -> torch.Tensor:
    """YOLO's deltas from `bboxes` to `gt_bboxes`.

    Args:
        bboxes: the boxes to start from, anchors for example, shape (n, 4).
        gt_bboxes: the boxes to get to, shape (n, 4).
        stride: the stride of each box, shape (n), integers.

    Returns:
        The deltas, shape (n, 4).
    """
    bboxes, gt_bboxes = _pair("npu_bbox_coder_encode_yolo", bboxes, "gt_bboxes", gt_bboxes)
    return torch_npu.npu_yolo_boxes_encode(bboxes, gt_bboxes, stride.int(), performance_mode=False)


def npu_bbox_coder_encode_xyxy2xywh(
    bboxes: torch.Tensor,
    gt_bboxes: torch.Tensor,
    means: Sequence[float] | None = None,
    stds: Sequence[float] | None = None,
    is_normalized: bool = False,
    normalized_scale: float = 10000.0,
) -> torch.Tensor:
    """Deltas (dx, dy, dw, dh) from `bboxes` to `gt_bboxes`, both as (x0, y0, x1, y1).

    Args:
        bboxes: the boxes to start from, shape (n, 4).
        gt_bboxes: the boxes to get to, shape (n, 4).
        means: subtracted from the deltas; zeros by default.
        stds: the deltas are divided by them; ones by default.
        is_normalized: whether the coordinates are fractions of the image; they are multiplied by
            `normalized_scale` then, since the operator counts in pixels.
        normalized_scale: see above.

    Returns:
        The deltas, shape (n, 4).
    """
    bboxes, gt_bboxes = _pair("npu_bbox_coder_encode_xyxy2xywh", bboxes, "gt_bboxes", gt_bboxes)
    if is_normalized:
        bboxes, gt_bboxes = bboxes * normalized_scale, gt_bboxes * normalized_scale
    return torch_npu.npu_bounding_box_encode(
        bboxes, gt_bboxes, *(means or [0.0] * 4), *(stds or [1.0] * 4)
    )


def npu_bbox_coder_decode_xywh2xyxy(
    bboxes: torch.Tensor,
    pred_bboxes: torch.Tensor,
    means: Sequence[float] | None = None,
    stds: Sequence[float] | None = None,
    max_shape: Sequence[int] | None = None,
    wh_ratio_clip: float = 16 / 1000,
) -> torch.Tensor:
    """Boxes (x0, y0, x1, y1) from deltas (dx, dy, dw, dh), the other way round.

    Args:
        bboxes: the boxes that the deltas start from, shape (n, 4).
        pred_bboxes: the deltas, shape (n, 4).
        means: what encoding subtracted; zeros by default.
        stds: what encoding divided by; ones by default.
        max_shape: height and width that boxes are clipped to; 9999 each by default.
        wh_ratio_clip: the smallest ratio of width and height to those of the box.

    Returns:
        The boxes, shape (n, 4).
    """
    name = "npu_bbox_coder_decode_xywh2xyxy"
    bboxes, pred_bboxes = _pair(name, bboxes, "pred_bboxes", pred_bboxes)
    shape = [9999, 9999] if max_shape is None else max_shape
    return torch_npu.npu_bounding_box_decode(
        bboxes, pred_bboxes, *(means or [0.0] * 4), *(stds or [1.0] * 4), shape, wh_ratio_clip
    )
