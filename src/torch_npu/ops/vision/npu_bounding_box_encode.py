"""npu_bounding_box_encode: the deltas that turn anchors into ground truth."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision._boxes import FLOATS, rows_of


def _center_and_sides(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = boxes[:, :2], boxes[:, 2:]
    return (low + high) * 0.5, high - low + 1


def _raw(
    anchor_box: torch.Tensor, ground_truth_box: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The deltas; quotients are rounded to `dtype`, and the logarithms once more."""
    p, p_sides = _center_and_sides(anchor_box)
    g, g_sides = _center_and_sides(ground_truth_box)
    ratio = (g_sides / p_sides).to(dtype).to(p.dtype)
    # 910A and 310P take the logarithm of the absolute value
    ratio = ratio.abs() if chips.current().family in ("910A", "310P") else ratio
    return torch.cat([(g - p) / p_sides, ratio.log()], 1).to(dtype)


@npu_op(
    "npu_bounding_box_encode(Tensor anchor_box, Tensor ground_truth_box, float means0, float means1, "
    "float means2, float means3, float stds0, float stds1, float stds2, float stds3) -> Tensor",
    aclop=True,
)
def npu_bounding_box_encode(
    anchor_box, ground_truth_box, means0, means1, means2, means3, stds0, stds1, stds2, stds3
):
    r"""The deltas of Faster R-CNN: from anchors to ground truth, normalized.

    $$ d = \Bigl( \frac{g_x - p_x}{p_w},\ \frac{g_y - p_y}{p_h},\ \ln\frac{g_w}{p_w},\ \ln\frac{g_h}{p_h} \Bigr)
       \qquad \mathrm{out}_i = \frac{d_i - \mathrm{means}_i}{\mathrm{stds}_i} $$

    with centers p, g and sides w = x2 - x1 + 1, h = y2 - y1 + 1. A ground truth of negative side gives NaN,
    on Atlas training (910A) and inference (310P) products the logarithm of the absolute value.

    Args:
        anchor_box: (n, 4), rows x1, y1, x2, y2; float16 or float32.
        ground_truth_box: (n, 4), of the same dtype.
        means0: subtracted from the first delta; means1, means2 and means3 from the others.
        stds0: divides the first delta; stds1, stds2 and stds3 the others. Not 0.

    Returns:
        (n, 4) in the dtype of `anchor_box`. Before Ascend950 the deltas, and their product with the
        reciprocals of the stds, are rounded to float16, whatever the inputs.
    """
    means, stds = (means0, means1, means2, means3), (stds0, stds1, stds2, stds3)
    if chips.current().family == "A5":
        boxes = wide(anchor_box)
        raw = _raw(boxes, wide(ground_truth_box), boxes.dtype)
        deltas = (raw - raw.new_tensor(means)) / raw.new_tensor(stds)
    else:
        boxes, truth = anchor_box.half().float(), ground_truth_box.half().float()
        raw = _raw(boxes, truth, torch.float16)
        scale = torch.tensor([1 / s for s in stds], dtype=torch.float16, device=raw.device)
        deltas = (raw - raw.new_tensor(means)) * scale
    return deltas.to(anchor_box.dtype)


@npu_bounding_box_encode.check
def _(anchor_box, ground_truth_box, stds0, stds1, stds2, stds3):
    must.dtype("anchor_box", anchor_box, *FLOATS)
    must.same_dtype("ground_truth_box", ground_truth_box, "anchor_box", anchor_box)
    rows_of("anchor_box", anchor_box)
    must.shape("ground_truth_box", ground_truth_box, tuple(anchor_box.shape))
    stds = {"stds0": stds0, "stds1": stds1, "stds2": stds2, "stds3": stds3}
    for name, value in stds.items():
        must.hold(value != 0, name, "other than 0", value)


npu_bounding_box_encode.samples = [
    Sample(
        lambda make: (
            make(3, 4, low=0, high=9).cumsum(1),
            make(3, 4, low=1, high=8).cumsum(1),
            *(0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.2),
        )
    ),
    Sample(
        lambda make: (
            make(2, 4, low=0, high=9, dtype=torch.float16).cumsum(1),
            make(2, 4, low=1, high=8, dtype=torch.float16).cumsum(1),
            *(0.1, 0.2, 0.3, 0.4, 1.0, 1.0, 1.0, 1.0),
        )
    ),
]
