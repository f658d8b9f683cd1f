"""npu_nms_rotated: non-maximum suppression of rotated boxes."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _nms, _rotated
from torch_npu.ops.vision._boxes import FLOATS, rows_of

#: a box whose area is smaller overlaps nothing
LEAST = 1e-14


def _sizes(boxes: torch.Tensor, mode: int) -> torch.Tensor:
    """w * h as given: negative where just one side is."""
    sides = boxes[:, 2:4] - boxes[:, :2] if mode == 1 else boxes[:, 2:4]
    return sides[:, 0] * sides[:, 1]


def _suppress(boxes: torch.Tensor, threshold: float, mode: int) -> _nms.Suppress:
    frames = _rotated.rectangles(boxes, mode == 1, -1.0 if mode == 1 else 1.0)
    solid = _sizes(boxes.double(), mode) >= LEAST
    sizes = frames.area()

    def suppress(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        shared = _rotated.all_pairs(frames.at(a), frames.at(b))
        both = solid[a][:, None] & solid[b][None, :]
        union = torch.where(both, sizes[a][:, None] + sizes[b][None, :] - shared, 1.0)
        return both & (shared / union > threshold)

    return suppress


@npu_op(
    "npu_nms_rotated(Tensor self, Tensor scores, float iou_threshold, float scores_threshold=0, "
    "int max_output_size=-1, int mode=0) -> (Tensor, Tensor)",
    aclop=True,
)
def npu_nms_rotated(self, scores, iou_threshold, scores_threshold, max_output_size, mode):
    """Chooses rotated boxes by score, best first, leaving out those that overlap a chosen one too much.

    A box counts if its score is above `scores_threshold`; it is left out if its IoU with a chosen box is above
    `iou_threshold`. Of equal scores the lower index comes first. A box whose area w * h is not positive overlaps
    nothing.

    Args:
        self: (n, 5) boxes, float16 or float32.
        scores: (n,), float16 or float32.
        iou_threshold: see above.
        scores_threshold: see above.
        max_output_size: the largest number of boxes to choose; -1 for no limit.
        mode: 0 for boxes x, y, w, h and an angle in degrees, which turns the x axis towards the y axis; 1 for
            boxes x1, y1, x2, y2 and an angle in the other sense.

    Returns:
        selected_index, int32, the indices of the chosen boxes; and selected_num, int32 of shape (1,), how many
        they are.

    Constraints:
        Upstream's page says that mode 1 is not supported; its tests use
        it, and so may programs here.
    """
    order = _nms.by_score(wide(scores), scores_threshold)
    limit = None if max_output_size < 0 else max_output_size
    kept = _nms.greedy(len(order), _suppress(self[order], iou_threshold, mode), limit)
    count = torch.tensor([len(kept)], dtype=torch.int32, device=self.device)
    return order[kept].int(), count


@npu_nms_rotated.check
def _(self, scores, max_output_size, mode):
    must.dtype("self", self, *FLOATS)
    must.dtype("scores", scores, *FLOATS)
    rows_of("self", self, 5)
    must.shape("scores", scores, (self.shape[0],))
    must.hold(
        max_output_size >= -1, "max_output_size", "at least -1", max_output_size, ErrCode.VALUE
    )
    must.choice("mode", mode, (0, 1))


@npu_nms_rotated.meta
def _(self):
    count = torch.library.get_ctx().new_dynamic_size()
    return self.new_empty(count, dtype=torch.int32), self.new_empty(1, dtype=torch.int32)


npu_nms_rotated.samples = [
    Sample(lambda make: (make(8, 5, low=0, high=30), make(8, low=0), 0.2)),
    Sample(
        lambda make: (make(6, 5, low=0, high=9).cumsum(1), make(6, low=0), 0.1),
        {"scores_threshold": 0.2, "max_output_size": 3, "mode": 1},
    ),
]
