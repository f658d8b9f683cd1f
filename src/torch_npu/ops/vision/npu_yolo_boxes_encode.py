"""npu_yolo_boxes_encode: YOLO's deltas from anchors to ground truth."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision._boxes import FLOATS, rows_of

#: centers stay this far from the borders of their cell, and ratios of sides at least this large
LEAST = 1e-6
#: the largest ratio of sides
MAX = 65504.0
STRIDES = (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@npu_op(
    "npu_yolo_boxes_encode(Tensor self, Tensor gt_bboxes, Tensor stride, bool performance_mode=False) -> Tensor",
    aclop=True,
)
def npu_yolo_boxes_encode(self, gt_bboxes, stride, performance_mode):
    r"""YOLO's regression targets: where in its cell a center lies, and the logarithm of the ratio of sides.

    $$ t_x = \mathrm{clip}\Bigl(\frac{g_x - a_x}{s} + \tfrac12,\ \epsilon,\ 1 - \epsilon\Bigr) \qquad
       t_w = \ln \mathrm{clip}\Bigl(\frac{g_w}{a_w},\ \epsilon,\ 65504\Bigr) \qquad \epsilon = 10^{-6} $$

    and y, h likewise, with centers and sides of anchors a and ground truth g.

    Args:
        self: (n, 4) anchors, rows x1, y1, x2, y2; float16 or float32.
        gt_bboxes: (n, 4) ground truth, of the same dtype.
        stride: (n,) strides s of the cells, int32 (or a shorter integer).
        performance_mode: True rounds the boxes to float16 first, which the card does for speed: errors up to
            0.005 instead of 0.0001.

    Returns:
        (n, 4) rows tx, ty, tw, th, in the dtype of `gt_bboxes`.

    Constraints:
        n at most 20480.
    """
    a, g = wide(self), wide(gt_bboxes)
    if performance_mode:
        a, g = a.half().to(a.dtype), g.half().to(g.dtype)
    apart = (g[:, :2] + g[:, 2:]) * 0.5 - (a[:, :2] + a[:, 2:]) * 0.5
    place = (apart / stride.to(a.dtype)[:, None] + 0.5).clamp(LEAST, 1 - LEAST)
    ratio = (g[:, 2:] - g[:, :2]) / (a[:, 2:] - a[:, :2])
    return torch.cat([place, ratio.clamp(LEAST, MAX).log()], 1).to(gt_bboxes.dtype)


@npu_yolo_boxes_encode.check
def _(self, gt_bboxes, stride):
    must.dtype("self", self, *FLOATS)
    must.same_dtype("gt_bboxes", gt_bboxes, "self", self)
    rows_of("self", self)
    n = self.shape[0]
    must.hold(n <= 20480, "self", "of at most 20480 boxes", n, ErrCode.PARAM)
    must.shape("gt_bboxes", gt_bboxes, (n, 4))
    must.dtype("stride", stride, *STRIDES)
    must.shape("stride", stride, (n,))


npu_yolo_boxes_encode.samples = [
    Sample(
        lambda make: (
            make(3, 4, low=0, high=9).cumsum(1),
            make(3, 4, low=1, high=8).cumsum(1),
            make(3, dtype=torch.int32, low=8, high=32),
        )
    ),
    Sample(
        lambda make: (
            make(2, 4, low=0, high=9, dtype=torch.float16).cumsum(1),
            make(2, 4, low=1, high=8, dtype=torch.float16).cumsum(1),
            make(2, dtype=torch.int32, low=8, high=32),
            True,
        )
    ),
]
