"""npu_batch_nms: non-maximum suppression of every class of every image."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _nms
from torch_npu.ops.vision._boxes import FLOATS

#: the most boxes of a class and of an image on Ascend950
MAX = 1000


def _by_class(self: torch.Tensor, transpose_box: bool) -> torch.Tensor:
    """Boxes as (B, q, N, 4)."""
    return self.transpose(2, 3) if transpose_box else self.transpose(1, 2)


def _image(
    boxes: torch.Tensor,
    scores: torch.Tensor,
    score_threshold: float,
    iou_threshold: float,
    per_class: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Boxes, scores and classes that remain of one image, best first."""
    found = []
    for c in range(scores.shape[1]):
        own = boxes[c if len(boxes) > 1 else 0]
        order = _nms.by_score(scores[:, c], score_threshold)
        kept = order[_nms.greedy(len(order), _nms.upright(own[order], iou_threshold), per_class)]
        found.append((own[kept], scores[kept, c], torch.full((len(kept),), c)))
    all_boxes, all_scores, classes = (torch.cat(t) for t in zip(*found, strict=True))
    order = _nms.by_score(all_scores)
    return all_boxes[order], all_scores[order], classes[order]


@npu_op(
    "npu_batch_nms(Tensor self, Tensor scores, float score_threshold, float iou_threshold, "
    "int max_size_per_class, int max_total_size, bool change_coordinate_frame=False, "
    "bool transpose_box=False) -> (Tensor, Tensor, Tensor, Tensor)",
    aclop=True,
)
def npu_batch_nms(
    self, scores, score_threshold, iou_threshold, max_size_per_class, max_total_size, transpose_box
):
    """Non-maximum suppression by class; of each image the best boxes of all classes.

    In each class boxes with a score above `score_threshold` are chosen best first (of equal scores the lower
    index), leaving out those whose IoU with a chosen one is above `iou_threshold`.

    Args:
        self: (B, N, q, 4) boxes y1, x1, y2, x2 (or x1, y1, x2, y2), q = 1 or one set a class; float16 or float32.
        scores: (B, N, C) scores, of the same dtype.
        score_threshold: see above.
        iou_threshold: see above, in [0, 1].
        max_size_per_class: the largest number of boxes of one class.
        max_total_size: the largest number of boxes of one image.
        change_coordinate_frame: whether to give boxes in the frame of a clip window. The operator takes no such
            window, so that nothing is left to change.
        transpose_box: True for boxes of shape (B, q, 4, N).

    Returns:
        nmsed_boxes (B, max_total_size, 4), nmsed_scores and nmsed_classes (B, max_total_size), in the dtype of
        `self`, filled up with 0; and nmsed_num (B,) int32, how many boxes an image has.

    Constraints:
        Before Ascend950 scores of fewer images than there are boxes are taken, as in upstream's example: an image
        without scores has no boxes. On Ascend950 both sizes are at most 1000.

    Differs from upstream: boxes come back as they were given. The card scales them inside, so that on 910A and
    310P their coordinates carry an error of some units in the last place of float16.
    """
    boxes, marks = wide(_by_class(self, transpose_box)), wide(scores)
    batch, size = self.shape[0], max_total_size
    out_boxes = self.new_zeros(batch, size, 4)
    out_scores, out_classes = self.new_zeros(batch, size), self.new_zeros(batch, size)
    out_num = torch.zeros(batch, dtype=torch.int32, device=self.device)
    for b in range(min(batch, scores.shape[0]) if scores.shape[2] else 0):
        found = _image(boxes[b], marks[b], score_threshold, iou_threshold, max_size_per_class)
        count = min(len(found[1]), size)
        for out, values in zip((out_boxes, out_scores, out_classes), found, strict=True):
            out[b, :count] = values[:count].to(out.dtype)
        out_num[b] = count
    return out_boxes, out_scores, out_classes, out_num


@npu_batch_nms.check
def _(
    self,
    scores,
    iou_threshold,
    max_size_per_class,
    max_total_size,
    change_coordinate_frame,
    transpose_box,
):
    must.dtype("self", self, *FLOATS)
    must.same_dtype("scores", scores, "self", self)
    must.ndim("self", self, 4)
    must.ndim("scores", scores, 3)
    must.hold(self.numel() > 0, "self", "of at least one box", tuple(self.shape), ErrCode.PARAM)
    given = tuple(self.shape)
    batch, q, n, four = _by_class(self, transpose_box).shape
    wanted = "(B, q, 4, N)" if transpose_box else "(B, N, q, 4)"
    must.hold(four == 4, "self", f"of shape {wanted}", given, ErrCode.PARAM)
    must.shape("scores", scores, (None, n, None))
    must.hold(scores.shape[0] <= batch, "scores", f"of at most {batch} images", scores.shape[0])
    classes = scores.shape[2]
    must.hold(q in (1, classes), "self", f"of q = 1 or {classes} sets of boxes", q)
    must.hold(0 <= iou_threshold <= 1, "iou_threshold", "in [0, 1]", iou_threshold)
    must.hold(max_size_per_class > 0, "max_size_per_class", "positive", max_size_per_class)
    must.hold(max_total_size > 0, "max_total_size", "positive", max_total_size)
    if chips.current().family == "A5":
        must.shape("scores", scores, (batch, n, classes))
        for name, size in (
            ("max_size_per_class", max_size_per_class),
            ("max_total_size", max_total_size),
        ):
            must.hold(size <= MAX, name, f"at most {MAX} on Ascend950", size)
    must.choice("change_coordinate_frame", change_coordinate_frame, (False, True))


@npu_batch_nms.meta
def _(self, max_total_size):
    shape = (self.shape[0], max_total_size)
    return (
        self.new_empty(*shape, 4),
        self.new_empty(shape),
        self.new_empty(shape),
        self.new_empty(self.shape[0], dtype=torch.int32),
    )


npu_batch_nms.samples = [
    Sample(
        lambda make: (
            make(2, 5, 1, 4, low=0, high=9).cumsum(3),
            make(2, 5, 3, low=0),
            0.2,
            0.3,
            3,
            6,
        )
    ),
    Sample(
        lambda make: (
            make(1, 3, 4, 6, low=0, high=9).cumsum(2).half(),
            make(1, 6, 3, low=0, dtype=torch.float16),
            0.2,
            0.3,
            2,
            4,
        ),
        {"transpose_box": True},
    ),
]
