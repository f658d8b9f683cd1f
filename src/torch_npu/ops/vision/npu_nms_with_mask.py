"""npu_nms_with_mask: non-maximum suppression as a mask over the boxes."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _nms
from torch_npu.ops.vision._boxes import FLOATS


@npu_op(
    "npu_nms_with_mask(Tensor input, Scalar iou_threshold) -> (Tensor, Tensor, Tensor)", aclop=True
)
def npu_nms_with_mask(input, iou_threshold):
    """Marks the boxes that remain when those are taken out that overlap a better one too much.

    Boxes are looked at by score, best first, of equal scores the lower index; one is taken out if its IoU with a
    remaining better box is above the threshold.

    Args:
        input: (n, 5) rows x1, y1, x2, y2, score; float16 or float32 (bfloat16 too on Ascend950). (n, 8) is taken
            as well, its last three columns mean nothing.
        iou_threshold: the threshold, in [0, 1].

    Returns:
        selected_boxes (n, 5), boxes and scores of the input; selected_idx (n,) int32, their indices; and
        selected_mask (n,) uint8, 1 for the boxes that remain.

    Constraints:
        n at most 39936; on Ascend950 from 1 to 39935, and just the five columns.

    Differs from upstream: the card compares boxes in the order in which they come, so that they must be sorted by
    score; here they may come in any order.
    """
    boxes = wide(input[:, :4])
    order = _nms.by_score(wide(input[:, 4]))
    kept = order[_nms.greedy(len(order), _nms.upright(boxes[order], float(iou_threshold)))]
    mask = torch.zeros(len(boxes), dtype=torch.uint8, device=input.device)
    mask[kept] = 1
    index = torch.arange(len(boxes), dtype=torch.int32, device=input.device)
    return input[:, :5].clone(memory_format=torch.contiguous_format), index, mask


@npu_nms_with_mask.check
def _(input, iou_threshold):
    newest = chips.current().family == "A5"
    must.dtype("input", input, *FLOATS, *((torch.bfloat16,) if newest else ()))
    must.ndim("input", input, 2)
    n, width = input.shape
    must.hold(
        width in (5, 8), "input", "of shape (n, 5) or (n, 8)", tuple(input.shape), ErrCode.PARAM
    )
    must.hold(n <= 39936, "input", "of at most 39936 boxes", n, ErrCode.PARAM)
    if newest:
        must.shape("input", input, (None, 5))
        must.hold(0 < n < 39936, "input", "of 1 to 39935 boxes on Ascend950", n, ErrCode.PARAM)
    must.hold(0 <= iou_threshold <= 1, "iou_threshold", "in [0, 1]", iou_threshold)


@npu_nms_with_mask.meta
def _(input):
    n = input.shape[0]
    return (
        input.new_empty(n, 5),
        input.new_empty(n, dtype=torch.int32),
        input.new_empty(n, dtype=torch.uint8),
    )


npu_nms_with_mask.samples = [
    Sample(lambda make: (make(6, 5, low=0, high=9).cumsum(1), 0.3)),
    Sample(lambda make: (make(3, 8, low=0, dtype=torch.float16), 0.5)),
]
