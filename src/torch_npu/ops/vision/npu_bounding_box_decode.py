"""npu_bounding_box_decode: boxes from regions of interest and predicted deltas."""

from __future__ import annotations

import math

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision._boxes import FLOATS, rows_of


@npu_op(
    "npu_bounding_box_decode(Tensor rois, Tensor deltas, float means0, float means1, float means2, "
    "float means3, float stds0, float stds1, float stds2, float stds3, int[1] max_shape, "
    "float wh_ratio_clip) -> Tensor",
    aclop=True,
)
def npu_bounding_box_decode(
    rois,
    deltas,
    means0,
    means1,
    means2,
    means3,
    stds0,
    stds1,
    stds2,
    stds3,
    max_shape,
    wh_ratio_clip,
):
    r"""The boxes of Faster R-CNN: regions of interest, moved and scaled by deltas, clipped to the image.

    $$ d_i = \mathrm{deltas}_i \cdot \mathrm{stds}_i + \mathrm{means}_i \qquad
       g_x = p_x + p_w d_0 \qquad g_w = p_w e^{\mathrm{clip}(d_2)} \qquad
       x_{1,2} = \mathrm{clip}\bigl(g_x \mp (g_w - 1) / 2,\ 0,\ W - 1\bigr) $$

    and y likewise, with center p and sides p_w = x2 - x1 + 1 of the region. d_2 and d_3 are clipped to
    $\pm\lvert\ln(\mathrm{wh\_ratio\_clip})\rvert$.

    Args:
        rois: (n, 4), rows x1, y1, x2, y2; float16 or float32.
        deltas: (n, 4), rows dx, dy, dw, dh; of the same dtype.
        means0: added to the first delta; means1, means2 and means3 to the others.
        stds0: multiplies the first delta; stds1, stds2 and stds3 the others.
        max_shape: [H, W] of the image.
        wh_ratio_clip: bounds the scaling of the sides; positive.

    Returns:
        (n, 4) boxes x1, y1, x2, y2 in the dtype of `rois`.
    """
    p = wide(rois)
    stds = p.new_tensor((stds0, stds1, stds2, stds3))
    d = wide(deltas) * stds + p.new_tensor((means0, means1, means2, means3))
    bound = abs(math.log(wh_ratio_clip))
    low, high = p[:, :2], p[:, 2:]
    sides = high - low + 1
    center = (low + high) * 0.5 + sides * d[:, :2]
    reach = sides * d[:, 2:].clamp(-bound, bound).exp() * 0.5
    corners = torch.cat([center - reach + 0.5, center + reach - 0.5], 1)
    last = p.new_tensor((max_shape[1] - 1, max_shape[0] - 1)).repeat(2)
    return torch.minimum(corners.clamp(min=0), last).to(rois.dtype)


@npu_bounding_box_decode.check
def _(rois, deltas, max_shape, wh_ratio_clip):
    must.dtype("rois", rois, *FLOATS)
    must.same_dtype("deltas", deltas, "rois", rois)
    rows_of("rois", rois)
    must.shape("deltas", deltas, tuple(rois.shape))
    must.hold(len(max_shape) == 2, "max_shape", "[H, W]", list(max_shape), ErrCode.PARAM)
    must.hold(min(max_shape) > 0, "max_shape", "positive", list(max_shape))
    must.hold(wh_ratio_clip > 0, "wh_ratio_clip", "positive", wh_ratio_clip)


npu_bounding_box_decode.samples = [
    Sample(
        lambda make: (
            make(3, 4, low=0, high=9).cumsum(1),
            make(3, 4),
            *(0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0),
            [40, 30],
            0.016,
        )
    ),
    Sample(
        lambda make: (
            make(2, 4, low=0, high=9, dtype=torch.float16).cumsum(1),
            make(2, 4, dtype=torch.float16),
            *(0.1, 0.2, 0.3, 0.4, 0.1, 0.1, 0.2, 0.2),
            [16, 16],
            0.1,
        )
    ),
]
