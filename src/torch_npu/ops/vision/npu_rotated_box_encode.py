"""npu_rotated_box_encode: the deltas that turn rotated anchors into ground truth."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _rotated_coder as coder


@npu_op(
    "npu_rotated_box_encode(Tensor self, Tensor gt_bboxes, Tensor weight) -> Tensor", aclop=True
)
def npu_rotated_box_encode(self, gt_bboxes, weight):
    r"""Regression targets of rotated boxes: from anchors a to ground truth g.

    $$ d = \Bigl(\frac{g_x - a_x}{a_w},\ \frac{g_y - a_y}{a_h},\ \ln\frac{g_w}{a_w},\ \ln\frac{g_h}{a_h},\
       \tan g_t - \tan a_t\Bigr) \cdot \mathrm{weight} $$

    with centers, sides w = x2 - x1 and h = y2 - y1, and angles t in degrees.

    Args:
        self: (B, 5, N) anchors: x1, y1, x2, y2 and angle; float16 or float32.
        gt_bboxes: (B, 5, N) ground truth, of the same dtype.
        weight: (5,) a factor for each delta.

    Returns:
        (B, 5, N) in the dtype of `self`.
    """
    center, sides, angle = coder.parts(wide(self))
    g_center, g_sides, g_angle = coder.parts(wide(gt_bboxes))
    turn = torch.tan(g_angle) - torch.tan(angle)
    deltas = torch.cat([(g_center - center) / sides, (g_sides / sides).log(), turn], 1)
    return (deltas * wide(weight)[:, None]).to(self.dtype)


@npu_rotated_box_encode.check
def _(self, gt_bboxes, weight):
    coder.check(self, gt_bboxes, weight, "gt_bboxes")
    must.shape("gt_bboxes", gt_bboxes, tuple(self.shape))


npu_rotated_box_encode.samples = [
    Sample(
        lambda make: (
            make(1, 5, 3, low=1, high=9).cumsum(1),
            make(1, 5, 3, low=2, high=8).cumsum(1),
            make(5, low=1, high=2),
        )
    )
]
