"""npu_anchor_response_flags: which anchors of a feature map answer for a ground truth."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision._boxes import FLOATS, rows_of


@npu_op(
    "npu_anchor_response_flags(Tensor self, int[2] featmap_size, int[2] stride, int num_base_anchors) -> Tensor",
    aclop=True,
)
def npu_anchor_response_flags(self, featmap_size, stride, num_base_anchors):
    r"""Marks the anchors of the cells in which the center of a ground truth lies.

    $$ i = \Bigl\lfloor \frac{x_1 + x_2}{2 s_0} \Bigr\rfloor \qquad
       j = \Bigl\lfloor \frac{y_1 + y_2}{2 s_1} \Bigr\rfloor \qquad
       \mathrm{flags}[(j W + i) A + a] = 1 $$

    for each ground truth and each of the A anchors of a cell; i and j are clipped to the map.

    Args:
        self: (n, 4) ground truth, rows x1, y1, x2, y2; float16 or float32.
        featmap_size: [H, W] of the feature map.
        stride: how many pixels a cell spans; the first divides x, the second y.
        num_base_anchors: A.

    Returns:
        H * W * A flags, uint8.

    Constraints:
        Positive strides and sizes.
    """
    boxes = self.float()
    height, width = featmap_size

    def cell(axis: int, size: int) -> torch.Tensor:
        center = (boxes[:, axis] + boxes[:, axis + 2]) * 0.5
        return torch.floor(center / stride[axis]).clamp(0, size - 1).nan_to_num().long()

    place = cell(1, height) * width + cell(0, width)
    flags = torch.zeros(height * width, dtype=torch.uint8, device=self.device)
    flags = flags.scatter(0, place, 1)
    return flags[:, None].expand(-1, num_base_anchors).reshape(-1)


@npu_anchor_response_flags.check
def _(self, featmap_size, stride, num_base_anchors):
    must.dtype("self", self, *FLOATS)
    rows_of("self", self)
    for name, values in (("featmap_size", featmap_size), ("stride", stride)):
        must.hold(len(values) == 2, name, "two numbers", list(values), ErrCode.PARAM)
        must.hold(min(values) > 0, name, "positive", list(values))
    must.hold(num_base_anchors >= 0, "num_base_anchors", "at least 0", num_base_anchors)
    flags = featmap_size[0] * featmap_size[1] * max(num_base_anchors, 1)
    must.countable("featmap_size", flags, list(featmap_size))


npu_anchor_response_flags.samples = [
    Sample(lambda make: (make(5, 4, low=0, high=40), [6, 4], [8, 8], 3)),
    Sample(lambda make: (make(2, 4, low=0, high=9, dtype=torch.float16), [3, 2], [4, 2], 1)),
]
