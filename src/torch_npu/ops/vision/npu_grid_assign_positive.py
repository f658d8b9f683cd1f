"""npu_grid_assign_positive: which anchors answer for which ground truth."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._indices import inside
from torch_npu.ops.vision._boxes import FLOATS

INDICES = (torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


def _last_of(chosen: torch.Tensor) -> torch.Tensor:
    """For each column the number (from 1) of the last row that holds there, 0 where none does."""
    rows = torch.arange(1, chosen.shape[0] + 1, device=chosen.device)[:, None]
    start = torch.zeros(1, chosen.shape[1], dtype=rows.dtype, device=chosen.device)
    return torch.cat([start, rows * chosen]).amax(0)


@npu_op(
    "npu_grid_assign_positive(Tensor self, Tensor overlaps, Tensor box_responsible_flags, "
    "Tensor max_overlaps, Tensor argmax_overlaps, Tensor gt_max_overlaps, Tensor gt_argmax_overlaps, "
    "int num_gts, float pos_iou_thr, float min_pos_iou, bool gt_max_assign_all) -> Tensor",
    aclop=True,
)
def npu_grid_assign_positive(
    self,
    overlaps,
    box_responsible_flags,
    max_overlaps,
    argmax_overlaps,
    gt_max_overlaps,
    gt_argmax_overlaps,
    num_gts,
    pos_iou_thr,
    min_pos_iou,
    gt_max_assign_all,
):
    """Assigns ground truth to anchors, as YOLO's grid assigner does.

    A responsible anchor whose best overlap exceeds `pos_iou_thr` gets its best ground truth. Then each ground
    truth i, in order, whose best overlap exceeds `min_pos_iou` takes its best anchor(s), if responsible. Numbers
    of ground truths count from 1; other anchors keep what `self` says.

    Args:
        self: (n,) assignments so far; float16 or float32.
        overlaps: (k, n) overlaps of k ground truths with n anchors; the dtype of `self`.
        box_responsible_flags: (n,) uint8, whether an anchor is responsible.
        max_overlaps: (n,) each anchor's best overlap; the dtype of `self`.
        argmax_overlaps: (n,) int32, which ground truth that is with.
        gt_max_overlaps: (k,) each ground truth's best overlap; the dtype of `self`.
        gt_argmax_overlaps: (k,) int32, which anchor that is with.
        num_gts: how many of the k ground truths count; what exceeds k is ignored.
        pos_iou_thr: see above.
        min_pos_iou: see above.
        gt_max_assign_all: whether a ground truth takes all anchors that share its best overlap, or the one of
            `gt_argmax_overlaps`.

    Returns:
        (n,) in the dtype of `self`.

    Constraints:
        Indices inside.
    """
    count = min(num_gts, overlaps.shape[0])
    responsible = box_responsible_flags != 0
    positive = (max_overlaps > pos_iou_thr) & responsible
    result = torch.where(positive, (argmax_overlaps.long() + 1).to(self.dtype), self)
    if gt_max_assign_all:
        best = overlaps[:count] == gt_max_overlaps[:count, None]
    else:
        anchors = torch.arange(self.shape[0], device=self.device)
        best = gt_argmax_overlaps[:count, None].long() == anchors
    eager = (gt_max_overlaps[:count] > min_pos_iou)[:, None]
    taken = _last_of(best & eager & responsible)
    return torch.where(taken > 0, taken.to(self.dtype), result)


@npu_grid_assign_positive.check
def _(
    self,
    overlaps,
    box_responsible_flags,
    max_overlaps,
    argmax_overlaps,
    gt_max_overlaps,
    gt_argmax_overlaps,
    num_gts,
):
    must.dtype("self", self, *FLOATS)
    must.ndim("self", self, 1)
    must.ndim("overlaps", overlaps, 2)
    n, k = self.shape[0], overlaps.shape[0]
    must.shape("overlaps", overlaps, (k, n))
    must.dtype("box_responsible_flags", box_responsible_flags, torch.uint8)
    must.dtype("argmax_overlaps", argmax_overlaps, *INDICES)
    must.dtype("gt_argmax_overlaps", gt_argmax_overlaps, *INDICES)
    sizes = {
        "box_responsible_flags": (box_responsible_flags, n),
        "max_overlaps": (max_overlaps, n),
        "argmax_overlaps": (argmax_overlaps, n),
        "gt_max_overlaps": (gt_max_overlaps, k),
        "gt_argmax_overlaps": (gt_argmax_overlaps, k),
    }
    for name, (tensor, size) in sizes.items():
        must.shape(name, tensor, (size,))
    floats = {
        "overlaps": overlaps,
        "max_overlaps": max_overlaps,
        "gt_max_overlaps": gt_max_overlaps,
    }
    for name, tensor in floats.items():
        must.same_dtype(name, tensor, "self", self)
    must.hold(num_gts >= 0, "num_gts", "at least 0", num_gts)
    inside("argmax_overlaps", argmax_overlaps, k)
    inside("gt_argmax_overlaps", gt_argmax_overlaps, n)


npu_grid_assign_positive.samples = [
    Sample(lambda make: _sample(make, True)),
    Sample(lambda make: _sample(make, False)),
]


def _sample(make, assign_all):
    """Four anchors, two ground truths."""
    overlaps = make(2, 4, low=0)
    flags = make(4, dtype=torch.uint8, low=0, high=2)
    chosen = make(4, dtype=torch.int32, low=0, high=2)
    best, place = overlaps.amax(1), overlaps.argmax(1).int()
    given = (make(4, low=0), overlaps, flags, make(4, low=0.2), chosen, best, place)
    return *given, 2, 0.5, 0.0, assign_all
