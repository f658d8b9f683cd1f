"""npu_iou: the overlap of every box with every ground truth."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _pairs
from torch_npu.ops.vision._boxes import FLOATS


@npu_op("npu_iou(Tensor bboxes, Tensor gtboxes, int mode=0) -> Tensor")
def npu_iou(bboxes, gtboxes, mode):
    r"""Intersection over union (IoU) or over foreground (IoF) of all pairs of upright boxes.

    $$ \mathrm{IoU}_{ji} = \frac{I_{ji}}{A_i + G_j - I_{ji}} \qquad \mathrm{IoF}_{ji} = \frac{I_{ji}}{G_j} $$

    where the areas A of `bboxes` and G of `gtboxes` are taken with both sides longer by 0.01, so that
    nothing is divided by 0: boxes of small (normalized) coordinates should be scaled up before. On
    Ascend950 the sides of the intersection I grow by 0.01 too.

    Args:
        bboxes: (n, 4), rows x1, y1, x2, y2; float16 or float32 (bfloat16 too on Ascend950).
        gtboxes: (m, 4), ground truth in the same form.
        mode: 0 for IoU, 1 for IoF, whose denominator is the area of the ground truth.

    Returns:
        (m, n) in the dtype of `bboxes`. Before Ascend950 all arithmetic is in float16, whatever the inputs.

    Constraints:
        Negative sides are taken by the same formula. On Ascend950 both are of one dtype. There is no gradient.
    """
    formula = _pairs.exact if chips.current().family == "A5" else _pairs.half
    return formula(bboxes, gtboxes, mode)


@npu_iou.check
def _(bboxes, gtboxes, mode):
    newest = chips.current().family == "A5"
    _pairs.check(bboxes, gtboxes, mode, *FLOATS, *((torch.bfloat16,) if newest else ()))
    if newest:
        must.same_dtype("gtboxes", gtboxes, "bboxes", bboxes)


npu_iou.samples = [
    Sample(lambda make: (make(3, 4, high=20), make(2, 4, high=20))),
    Sample(lambda make: (make(5, 4, dtype=torch.float16), make(4, 4, dtype=torch.float16), 1)),
]
