"""npu_rotated_box_decode: rotated boxes from anchors and predicted deltas."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _rotated_coder as coder


@npu_op("npu_rotated_box_decode(Tensor self, Tensor deltas, Tensor weight) -> Tensor", aclop=True)
def npu_rotated_box_decode(self, deltas, weight):
    r"""Rotated boxes of anchors a, moved, scaled and turned by deltas; undoes `npu_rotated_box_encode`.

    $$ d = \mathrm{deltas} / \mathrm{weight} \qquad g_x = a_x + a_w d_0 \qquad g_w = a_w e^{d_2} \qquad
       g_t = \arctan(\tan a_t + d_4) $$

    and y, h likewise, with centers, sides w = x2 - x1 and h = y2 - y1, and angles t in degrees.

    Args:
        self: (B, 5, N) anchors: x1, y1, x2, y2 and angle; float16 or float32.
        deltas: (B, 5, N), of the same dtype.
        weight: (5,) a divisor for each delta.

    Returns:
        (B, 5, N) boxes x1, y1, x2, y2 and angle in (-90, 90), in the dtype of `self`.
    """
    center, sides, angle = coder.parts(wide(self))
    d = wide(deltas) / wide(weight)[:, None]
    middle, reach = center + sides * d[:, :2], sides * d[:, 2:4].exp() / 2
    turned = torch.rad2deg(torch.atan(torch.tan(angle) + d[:, 4:]))
    return torch.cat([middle - reach, middle + reach, turned], 1).to(self.dtype)


@npu_rotated_box_decode.check
def _(self, deltas, weight):
    coder.check(self, deltas, weight, "deltas")
    must.shape("deltas", deltas, tuple(self.shape))


npu_rotated_box_decode.samples = [
    Sample(
        lambda make: (
            make(1, 5, 3, low=1, high=9).cumsum(1),
            make(1, 5, 3),
            make(5, low=1, high=2),
        )
    )
]
