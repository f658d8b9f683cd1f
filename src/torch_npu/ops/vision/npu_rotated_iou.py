"""npu_rotated_iou: how much rotated boxes overlap."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _rotated


def _ratio(
    shared: torch.Tensor, own: torch.Tensor, query: torch.Tensor, mode: int, dtype: torch.dtype
) -> torch.Tensor:
    whole = query.expand_as(shared) if mode == 1 else own + query - shared
    return torch.where(whole > 0, shared / torch.where(whole > 0, whole, 1.0), 0.0).to(dtype)


@npu_op(
    "npu_rotated_iou(Tensor self, Tensor query_boxes, bool trans=False, int mode=0, bool is_cross=True, "
    "float v_threshold=0.0, float e_threshold=0.0) -> Tensor",
    aclop=True,
)
def npu_rotated_iou(self, query_boxes, trans, mode, is_cross):
    r"""Intersection over union, or over foreground, of rotated boxes.

    $$ \mathrm{IoU} = \frac{I}{A + Q - I} \qquad \mathrm{IoF} = \frac{I}{Q} $$

    where I is the area that a box (area A) and a query box (area Q) share; 0 where the denominator is.

    Args:
        self: (B, N, 5) boxes, float16 or float32: center x, y, sides w, h and an angle in degrees, which turns
            the x axis towards the y axis.
        query_boxes: (B, K, 5) boxes in the same form, K at most 1600.
        trans: True for boxes x1, y1, x2, y2 and angle: the upright box of these corners, turned about its center.
        mode: 0 for IoU, 1 for IoF, whose foreground is the query box.
        is_cross: True compares all pairs, False box by box, which needs N = K.
        v_threshold: how far outside a corner may lie and still count; at least 0.
        e_threshold: the same for crossing edges; at least 0.

    Returns:
        (B, N, K), or (B, N) box by box; in the dtype of `self`.

    Constraints:
        Sides count by their magnitudes. Upstream's page writes the shapes as (B, 5, N); its operator, its
        tests and its examples take (B, N, 5).

    Differs from upstream: the area is exact, so the two thresholds, which ease the card's search for corners,
    change nothing here. Its kernels compute IoU of all pairs whatever `mode` and `is_cross` say; here both do what
    the page documents.
    """
    one, other = _rotated.rectangles(self, trans), _rotated.rectangles(query_boxes, trans)
    own, query = one.area(), other.area()
    if not is_cross:
        return _ratio(_rotated.shared_area(one, other), own, query, mode, self.dtype)
    shared = [_rotated.all_pairs(a, b) for a, b in _rotated.batches(one, other)]
    if not shared:
        return self.new_empty(0, self.shape[1], query_boxes.shape[1])
    return _ratio(torch.stack(shared), own[:, :, None], query[:, None, :], mode, self.dtype)


@npu_rotated_iou.check
def _(self, query_boxes, mode, is_cross, v_threshold, e_threshold):
    _rotated.check(self, query_boxes)
    must.choice("mode", mode, (0, 1))
    k = query_boxes.shape[1]
    must.hold(k <= 1600, "query_boxes", "of at most 1600 boxes an image", k, ErrCode.PARAM)
    if not is_cross:
        must.shape("query_boxes", query_boxes, tuple(self.shape))
    for name, value in (("v_threshold", v_threshold), ("e_threshold", e_threshold)):
        must.hold(value >= 0, name, "at least 0", value)


@npu_rotated_iou.meta
def _(self, query_boxes, is_cross):
    n = self.shape[:2]
    return self.new_empty(*n, query_boxes.shape[1]) if is_cross else self.new_empty(*n)


npu_rotated_iou.samples = [
    Sample(lambda make: (make(2, 3, 5, low=0, high=20), make(2, 4, 5, low=0, high=20))),
    Sample(
        lambda make: (make(1, 3, 5, low=0, high=9), make(1, 3, 5, low=1, high=8)),
        {"mode": 1, "is_cross": False},
    ),
]
