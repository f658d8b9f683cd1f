"""npu_ciou, _npu_ciou and npu_ciou_backward: IoU less distance and difference of aspects."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _iou


def _check(self: torch.Tensor, gtboxes: torch.Tensor, is_cross: bool, mode: int) -> None:
    _iou.check(self, gtboxes, is_cross, mode)
    if chips.current().family == "A5":
        must.hold(not is_cross, "is_cross", "False on Ascend950", is_cross, ErrCode.NOT_SUPPORT)
        for name, boxes in (("self", self), ("gtboxes", gtboxes)):
            n = boxes.shape[1]
            must.hold(n % 1024 == 0, name, "of a multiple of 1024 boxes on Ascend950", n)


def _ciou(
    self: torch.Tensor,
    gtboxes: torch.Tensor,
    trans: bool,
    is_cross: bool,
    mode: int,
    atan_sub_flag: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    terms = _iou.Overlap(*_iou.pair(self, gtboxes, trans, is_cross), _iou.EPS, _iou.EPS)
    rho2, c2 = terms.distance()
    atan_sub = terms.atan_sub()
    v, alpha = terms.balance(atan_sub, mode)
    dtype = _iou.result_dtype(self, gtboxes)
    kept = atan_sub if atan_sub_flag else torch.zeros_like(atan_sub)
    halved = chips.current().family == "A5"
    return (terms.share(mode) - rho2 / c2 - alpha * v).to(dtype), kept.to(dtype) if halved else kept


@npu_op(
    "npu_ciou(Tensor self, Tensor gtboxes, bool trans=False, bool is_cross=True, int mode=0, "
    "bool atan_sub_flag=False) -> Tensor"
)
def npu_ciou(self, gtboxes, trans, is_cross, mode, atan_sub_flag):
    r"""Complete IoU: the overlap of boxes, less the distance of centers and the difference of aspects.

    $$ \mathrm{CIoU} = \mathrm{IoU} - \frac{\rho^2(b, g)}{c^2} - \alpha v \qquad
       v = \frac{4}{\pi^2} \Bigl(\arctan\frac{w_g}{h_g} - \arctan\frac{w_b}{h_b}\Bigr)^2 \qquad
       \alpha = \frac{v}{1 - \mathrm{IoU} + v} $$

    where $\rho$ is the distance of the centers and c the diagonal of the smallest box around both. The
    gradient takes $\alpha$ for a constant, as the method's authors and upstream do.

    Args:
        self: (4, n) predicted boxes, float16 or float32.
        gtboxes: (4, m) ground truth; m = n where `is_cross` is False.
        trans: True for rows x, y, w, h (center and sides), False for x1, y1, x2, y2.
        is_cross: True compares every box with every ground truth, False box by box.
        mode: 0 for IoU, 1 for IoF (over the area of the ground truth).
        atan_sub_flag: whether the forward keeps the difference of angles for the gradient, which else
            computes it again; the result is the same.

    Returns:
        (1, n), or (m, n) with `is_cross`; float16 if either input is.

    Constraints:
        Negative sides are taken by the same formula. The gradient exists for trans=True, is_cross=False, mode=0 only. On Ascend950: n a multiple of 1024, is_cross
        False, no gradient.
    """
    return _ciou(self, gtboxes, trans, is_cross, mode, atan_sub_flag)[0]


@npu_ciou.check
def _(self, gtboxes, is_cross, mode):
    _check(self, gtboxes, is_cross, mode)


@npu_ciou.backward
def _(grad, *, self, gtboxes, trans, is_cross, mode):
    dself, dgt = torch.ops.npu.npu_ciou_backward(grad, self, gtboxes, None, trans, is_cross, mode)
    return {"self": dself, "gtboxes": dgt}


npu_ciou.samples = [
    Sample(lambda make: (make(4, 6, low=0, high=2), make(4, 6, low=0.1, high=1.6), True, False)),
    Sample(lambda make: (make(4, 3, low=0, high=2), make(4, 5, low=0, high=2)), {"mode": 1}),
    Sample(
        lambda make: (make(4, 3, low=0, high=2), make(4, 3, low=0.1, high=1.6)),
        {"is_cross": False, "atan_sub_flag": True},
    ),
]


@npu_op(
    "_npu_ciou(Tensor self, Tensor gtboxes, bool trans=False, bool is_cross=True, int mode=0, "
    "bool atan_sub_flag=False) -> (Tensor, Tensor)",
    export=False,
    output_differentiability=(True, False),
)
def _npu_ciou(self, gtboxes, trans, is_cross, mode, atan_sub_flag):
    """`npu_ciou` with its second result: the difference of the aspect angles (zeros unless `atan_sub_flag`)."""
    return _ciou(self, gtboxes, trans, is_cross, mode, atan_sub_flag)


@_npu_ciou.check
def _(self, gtboxes, is_cross, mode):
    _check(self, gtboxes, is_cross, mode)


@_npu_ciou.backward
def _(grad, *, self, gtboxes, trans, is_cross, mode, atan_sub_flag, result1):
    kept = result1 if atan_sub_flag else None
    dself, dgt = torch.ops.npu.npu_ciou_backward(grad, self, gtboxes, kept, trans, is_cross, mode)
    return {"self": dself, "gtboxes": dgt}


_npu_ciou.samples = [
    Sample(
        lambda make: (make(4, 6, low=0, high=2), make(4, 6, low=0.1, high=1.6), True, False),
        {"atan_sub_flag": True},
    )
]


@npu_op(
    "npu_ciou_backward(Tensor grad, Tensor bboxes, Tensor gtboxes, Tensor? atan_sub, bool trans=False, "
    "bool is_cross=True, int mode=0) -> (Tensor, Tensor)"
)
def npu_ciou_backward(grad, bboxes, gtboxes, atan_sub, trans):
    """Gradients of `npu_ciou` with respect to `bboxes` and `gtboxes`; trans=True, is_cross=False, mode=0 only.

    `atan_sub` is the second result of the forward; without it the angles are computed again.
    """
    terms = _iou.Overlap(*_iou.pair(bboxes, gtboxes, trans, False), _iou.EPS, _iou.EPS)
    angles = terms.atan_sub() if atan_sub is None else wide(atan_sub).reshape(1, -1)
    _, alpha = terms.balance(angles, 0)
    d, found = wide(grad).reshape(1, -1), _iou.Gradient(terms)
    found.iou(d)
    found.far(-d)
    found.aspect(-d * alpha, angles)
    return found.boxes(trans, _iou.result_dtype(bboxes, gtboxes))


@npu_ciou_backward.check
def _(grad, bboxes, gtboxes, atan_sub, trans, is_cross, mode):
    family = chips.current().family
    must.hold(family != "A5", "grad", "off Ascend950", family, ErrCode.NOT_SUPPORT)
    must.shape("gtboxes", gtboxes, tuple(bboxes.shape))
    n = bboxes.shape[1]
    _iou.check_backward(grad, trans, is_cross, mode, n)
    if atan_sub is not None:
        given = tuple(atan_sub.shape)
        must.hold(atan_sub.numel() == n, "atan_sub", f"of {n} elements", given, ErrCode.PARAM)


npu_ciou_backward.samples = [
    Sample(
        lambda make: (
            make(1, 6),
            make(4, 6, low=0, high=2),
            make(4, 6, low=0.1, high=1.6),
            None,
            True,
            False,
        )
    )
]
