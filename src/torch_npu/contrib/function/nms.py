"""Suppression of overlapping boxes of several classes."""

from __future__ import annotations

import torch

from torch_npu.contrib._names import torch_npu


def npu_multiclass_nms(
    multi_bboxes: torch.Tensor,
    multi_scores: torch.Tensor,
    score_thr: float = 0.05,
    nms_thr: float = 0.45,
    max_num: int = 50,
    score_factors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`npu_batched_multiclass_nms` of one image: the same without the batch dimension.

    Args:
        multi_bboxes: shape (n, classes, 4) or (n, 4).
        multi_scores: shape (n, classes + 1); the last column, the background's, is not used.
        score_thr: boxes below this score are left out.
        nms_thr: of two boxes that overlap more than this, the better one stays.
        max_num: how many boxes come back; zeros fill up where there are fewer.
        score_factors: factors of the scores, shape (n).

    Returns:
        Boxes with their scores, shape (max_num, 5), and their classes, shape (max_num); both float16.
    """
    boxes, classes = npu_batched_multiclass_nms(
        multi_bboxes[None],
        multi_scores[None],
        score_thr,
        nms_thr,
        max_num,
        None if score_factors is None else score_factors[None],
    )
    return boxes[0], classes[0]


def npu_batched_multiclass_nms(
    multi_bboxes: torch.Tensor,
    multi_scores: torch.Tensor,
    score_thr: float = 0.05,
    nms_thr: float = 0.45,
    max_num: int = 50,
    score_factors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best boxes of each image and class, without those that overlap a better one.

    Args:
        multi_bboxes: shape (batch, n, classes, 4) or (batch, n, 4).
        multi_scores: shape (batch, n, classes + 1); the last column, the background's, is not used.
        score_thr: boxes below this score are left out.
        nms_thr: of two boxes that overlap more than this, the better one stays.
        max_num: how many boxes come back for an image; zeros fill up where there are fewer.
        score_factors: factors of the scores, shape (batch, n).

    Returns:
        Boxes with their scores, shape (batch, max_num, 5), and their classes, shape (batch, max_num); both float16.
    """
    batch, count, columns = multi_scores.shape
    scores = multi_scores[..., :-1]
    if score_factors is not None:
        scores = scores * score_factors[..., None]
    boxes = multi_bboxes.reshape(batch, count, -1, 4)
    scores = scores.reshape(batch, count, columns - 1)
    kept, kept_scores, classes, _ = torch_npu.npu_batch_nms(
        boxes.half(), scores.half(), score_thr, nms_thr, max_num, max_num
    )
    return torch.cat([kept, kept_scores[..., None]], -1), classes
