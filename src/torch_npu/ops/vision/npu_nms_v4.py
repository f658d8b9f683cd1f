"""npu_nms_v4: non-maximum suppression into a result of fixed length."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _nms
from torch_npu.ops.vision._boxes import FLOATS, rows_of


@npu_op(
    "npu_nms_v4(Tensor self, Tensor scores, Scalar max_output_size, Tensor iou_threshold, "
    "Tensor scores_threshold, bool pad_to_max_output_size=False) -> (Tensor, Tensor)",
    aclop=True,
)
def npu_nms_v4(
    self, scores, max_output_size, iou_threshold, scores_threshold, pad_to_max_output_size
):
    """Chooses boxes by score, best first, leaving out those that overlap a chosen one too much.

    A box counts if its score is above `scores_threshold`; it is left out if its IoU with a chosen box is above
    `iou_threshold`. Of equal scores the lower index comes first.

    Args:
        self: (n, 4) boxes, two opposite corners in any order; float16 or float32.
        scores: (n,), of the same dtype.
        max_output_size: the largest number of boxes to choose.
        iou_threshold: a 0-dimensional tensor in [0, 1].
        scores_threshold: a 0-dimensional tensor.
        pad_to_max_output_size: whether what follows the chosen indices is 0; else it is -1 here, and undefined on
            the card.

    Returns:
        selected_indices, int32 of shape (max_output_size,), the chosen ones in front; and valid_outputs, int32 of
        shape (), how many they are.
    """
    size = int(max_output_size)
    order = _nms.by_score(wide(scores), scores_threshold.item())
    boxes = wide(self)[order]
    low, high = (
        torch.minimum(boxes[:, :2], boxes[:, 2:]),
        torch.maximum(boxes[:, :2], boxes[:, 2:]),
    )
    suppress = _nms.upright(torch.cat([low, high], 1), iou_threshold.item())
    kept = order[_nms.greedy(len(order), suppress, size)]
    filler = 0 if pad_to_max_output_size else -1
    selected = torch.full((size,), filler, dtype=torch.int32, device=self.device)
    selected[: len(kept)] = kept.int()
    return selected, torch.tensor(len(kept), dtype=torch.int32, device=self.device)


@npu_nms_v4.check
def _(self, scores, max_output_size, iou_threshold, scores_threshold):
    must.dtype("self", self, *FLOATS)
    must.same_dtype("scores", scores, "self", self)
    rows_of("self", self)
    must.shape("scores", scores, (self.shape[0],))
    fits = 0 <= max_output_size < 2**31  # neither inf nor nan
    must.hold(fits, "max_output_size", "at least 0 and an int32", max_output_size)
    for name, value in (
        ("iou_threshold", iou_threshold),
        ("scores_threshold", scores_threshold),
    ):
        must.hold(value.dim() == 0, name, "0-dimensional", tuple(value.shape), ErrCode.PARAM)
        must.dtype(name, value, *FLOATS)
    if must.has_data(iou_threshold):
        bound = iou_threshold.item()
        must.hold(0 <= bound <= 1, "iou_threshold", "in [0, 1]", bound)


@npu_nms_v4.meta
def _(self, max_output_size):
    indices = self.new_empty(int(max_output_size), dtype=torch.int32)
    return indices, self.new_empty((), dtype=torch.int32)


npu_nms_v4.samples = [
    Sample(
        lambda make: (
            make(9, 4, low=0, high=20),
            make(9, low=0),
            4,
            make(low=0.3, high=0.31),
            make(low=0.1, high=0.11),
        ),
        {"pad_to_max_output_size": pad},
    )
    for pad in (False, True)
]
