"""npu_ptiou: the overlap of every box with every ground truth, in float16."""

from __future__ import annotations

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _pairs
from torch_npu.ops.vision._boxes import FLOATS


@npu_op("npu_ptiou(Tensor bboxes, Tensor gtboxes, int mode=0) -> Tensor", aclop=True)
def npu_ptiou(bboxes, gtboxes, mode):
    """The same as `npu_iou` before Ascend950: IoU or IoF of all pairs of upright boxes, in float16.

    Args:
        bboxes: (n, 4), rows x1, y1, x2, y2; float16 or float32.
        gtboxes: (m, 4), ground truth in the same form.
        mode: 0 for IoU, 1 for IoF, whose denominator is the area of the ground truth.

    Returns:
        (m, n) in the dtype of `bboxes`.
    """
    return _pairs.half(bboxes, gtboxes, mode)


@npu_ptiou.check
def _(bboxes, gtboxes, mode):
    _pairs.check(bboxes, gtboxes, mode, *FLOATS)


npu_ptiou.samples = [
    Sample(lambda make: (make(3, 4, high=20), make(2, 4, high=20))),
    Sample(lambda make: (make(5, 4), make(4, 4), 1)),
]
