"""npu_diou and npu_diou_backward: IoU less the distance of the centers."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _iou


@npu_op(
    "npu_diou(Tensor self, Tensor gtboxes, bool trans=False, bool is_cross=False, int mode=0) -> Tensor",
    aclop=True,
)
def npu_diou(self, gtboxes, trans, is_cross, mode):
    r"""Distance IoU: the overlap of boxes, less how far their centers are apart.

    $$ \mathrm{DIoU} = \mathrm{IoU} - \frac{\rho^2(b, g)}{c^2} $$

    where $\rho$ is the distance of the centers and c the diagonal of the smallest box around both.

    Args:
        self: (4, n) predicted boxes, float16 or float32.
        gtboxes: (4, m) ground truth; m = n where `is_cross` is False.
        trans: True for rows x, y, w, h (center and sides), False for x1, y1, x2, y2.
        is_cross: True compares every box with every ground truth, False box by box.
        mode: 0 for IoU, 1 for IoF (over the area of the ground truth).

    Returns:
        (1, n), or (m, n) with `is_cross`; float16 if either input is.

    Constraints:
        Negative sides are taken by the same formula. The gradient exists for trans=True, is_cross=False, mode=0 only.
    """
    terms = _iou.Overlap(*_iou.pair(self, gtboxes, trans, is_cross), _iou.EPS, _iou.EPS)
    rho2, c2 = terms.distance()
    return (terms.share(mode) - rho2 / c2).to(_iou.result_dtype(self, gtboxes))


@npu_diou.check
def _(self, gtboxes, is_cross, mode):
    _iou.check(self, gtboxes, is_cross, mode)


@npu_diou.backward
def _(grad, *, self, gtboxes, trans, is_cross, mode):
    dself, dgt = torch.ops.npu.npu_diou_backward(grad, self, gtboxes, trans, is_cross, mode)
    return {"self": dself, "gtboxes": dgt}


npu_diou.samples = [
    Sample(lambda make: (make(4, 6, low=0, high=2), make(4, 6, low=0.1, high=1.6), True)),
    Sample(lambda make: (make(4, 3), make(4, 5)), {"is_cross": True, "mode": 1}),
    Sample(lambda make: (make(4, 3), make(4, 3))),
]


@npu_op(
    "npu_diou_backward(Tensor grad, Tensor bboxes, Tensor gtboxes, bool trans=False, "
    "bool is_cross=False, int mode=0) -> (Tensor, Tensor)",
    aclop=True,
)
def npu_diou_backward(grad, bboxes, gtboxes, trans):
    """Gradients of `npu_diou` with respect to `bboxes` and `gtboxes`; trans=True, is_cross=False, mode=0 only."""
    terms = _iou.Overlap(*_iou.pair(bboxes, gtboxes, trans, False), _iou.EPS, _iou.EPS)
    d, found = wide(grad).reshape(1, -1), _iou.Gradient(terms)
    found.iou(d)
    found.far(-d)
    return found.boxes(trans, _iou.result_dtype(bboxes, gtboxes))


@npu_diou_backward.check
def _(grad, bboxes, gtboxes, trans, is_cross, mode):
    must.shape("gtboxes", gtboxes, tuple(bboxes.shape))
    _iou.check_backward(grad, trans, is_cross, mode, bboxes.shape[1])


npu_diou_backward.samples = [
    Sample(
        lambda make: (
            make(1, 6),
            make(4, 6, low=0, high=2),
            make(4, 6, low=0.1, high=1.6),
            True,
        )
    )
]
