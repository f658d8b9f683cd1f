"""npu_rotated_overlaps: the areas that rotated boxes share."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _rotated


@npu_op(
    "npu_rotated_overlaps(Tensor self, Tensor query_boxes, bool trans=False) -> Tensor", aclop=True
)
def npu_rotated_overlaps(self, query_boxes, trans):
    """The area that each rotated box shares with each query box, exact to the rounding of the result.

    Args:
        self: (B, N, 5) boxes, float16 or float32: center x, y, sides w, h and an angle in degrees, which turns
            the x axis towards the y axis.
        query_boxes: (B, K, 5) boxes in the same form.
        trans: True for boxes x1, y1, x2, y2 and angle: the upright box of these corners, turned about its center.

    Returns:
        (B, N, K) areas, in the dtype of `self`.

    Constraints:
        Sides count by their magnitudes. Upstream's page writes the shapes as (B, 5, N); its operator, its
        tests and its examples take (B, N, 5).
    """
    one, other = _rotated.rectangles(self, trans), _rotated.rectangles(query_boxes, trans)
    shared = [_rotated.all_pairs(a, b) for a, b in _rotated.batches(one, other)]
    result = self.new_empty(self.shape[0], self.shape[1], query_boxes.shape[1])
    return torch.stack(shared).to(self.dtype) if shared else result


@npu_rotated_overlaps.check
def _(self, query_boxes):
    _rotated.check(self, query_boxes)


@npu_rotated_overlaps.meta
def _(self, query_boxes):
    return self.new_empty(self.shape[0], self.shape[1], query_boxes.shape[1])


npu_rotated_overlaps.samples = [
    Sample(
        lambda make: (make(2, 3, 5, low=0, high=20), make(2, 4, 5, low=0, high=20)),
    ),
    Sample(
        lambda make: (
            make(1, 3, 5, low=0, high=9).cumsum(2),
            make(1, 2, 5, low=0, high=9).cumsum(2),
        ),
        {"trans": True},
    ),
]
