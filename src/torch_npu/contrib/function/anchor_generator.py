"""npu_single_level_responsible_flags: which anchors of a feature map answer for a box."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu.contrib._names import torch_npu

__all__ = ["npu_single_level_responsible_flags"]


def box_dtype_check(box: torch.Tensor) -> torch.Tensor:
    """The boxes in float32, in which box operators compute here as on the card."""
    return box.float()


def npu_single_level_responsible_flags(
    featmap_size: Sequence[int],
    gt_bboxes: torch.Tensor,
    stride: Sequence[int],
    num_base_anchors: int,
) -> torch.Tensor:
    """The flags of the anchors of one feature map: 1 in the cells that hold the center of a box.

    Args:
        featmap_size: height and width of the feature map.
        gt_bboxes: boxes (x0, y0, x1, y1), shape (n, 4).
        stride: pixels of a cell, in x and y.
        num_base_anchors: anchors of a cell.

    Returns:
        Flags of shape (height * width * num_base_anchors), which must stay below 60000.
    """
    boxes = box_dtype_check(gt_bboxes)
    return torch_npu.npu_anchor_response_flags(boxes, featmap_size, stride, num_base_anchors)
