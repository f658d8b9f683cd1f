"""npu_giou and npu_giou_backward: IoU less the empty part of the box around both."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.vision import _iou

#: keeps unions and the boxes around away from 0
EPS = 1e-16


def _columns(boxes: torch.Tensor) -> torch.Tensor:
    """Boxes as (4, n); (n, 4) is turned."""
    return boxes if boxes.shape[0] == 4 else boxes.t()


def _terms(
    self: torch.Tensor, gtboxes: torch.Tensor, trans: bool, is_cross: bool
) -> tuple[_iou.Overlap, torch.Tensor]:
    sides = _iou.pair(_columns(self), _columns(gtboxes), trans, is_cross)
    terms = _iou.Overlap(*sides, 0.0, EPS)
    return terms, terms.cw * terms.ch + EPS


def _check(self: torch.Tensor, gtboxes: torch.Tensor, is_cross: bool, mode: int) -> None:
    for name, boxes in (("self", self), ("gtboxes", gtboxes)):
        must.ndim(name, boxes, 2)
        must.hold(
            4 in boxes.shape, name, "of shape (4, n) or (n, 4)", tuple(boxes.shape), ErrCode.PARAM
        )
    _iou.check(_columns(self), _columns(gtboxes), is_cross, mode)


@npu_op(
    "npu_giou(Tensor self, Tensor gtboxes, bool trans=False, bool is_cross=False, int mode=0) -> Tensor",
    aclop=True,
)
def npu_giou(self, gtboxes, trans, is_cross, mode):
    r"""Generalized IoU: the overlap of boxes, less the part of the box around both that neither covers.

    $$ \mathrm{GIoU} = \mathrm{IoU} - \frac{C - U}{C} $$

    where U is the area of the union and C that of the smallest upright box around both.

    Args:
        self: boxes x, y, w, h (center and sides), (4, n) or (n, 4) (a 4 x 4 tensor is read by columns);
            float16 or float32.
        gtboxes: as many boxes of ground truth in the same form.
        trans: True; False would stand for boxes x1, y1, x2, y2.
        is_cross: False; True would compare every box with every ground truth.
        mode: 0; 1 would be IoF (over the area of the ground truth).

    Returns:
        (n, 1); float16 if either input is.

    Constraints:
        Upstream's host code takes trans=True, is_cross=False and mode=0 alone, though its page documents the rest.
        Negative sides are taken by the same formula.
    """
    terms, around = _terms(self, gtboxes, trans, is_cross)
    result = terms.share(mode) - (around - terms.union) / around
    result = result if is_cross else result.reshape(-1, 1)
    return result.to(_iou.result_dtype(self, gtboxes))


@npu_giou.check
def _(self, gtboxes, trans, is_cross, mode):
    _iou.check_form(trans, is_cross, mode, "in upstream's host code")
    _check(self, gtboxes, is_cross, mode)


@npu_giou.backward
def _(grad, *, self, gtboxes, trans, is_cross, mode):
    dself, dgt = torch.ops.npu.npu_giou_backward(grad, self, gtboxes, trans, is_cross, mode)
    return {"self": dself, "gtboxes": dgt}


npu_giou.samples = [
    Sample(lambda make: (make(4, 6, low=0, high=2), make(4, 6, low=0.1, high=1.6), True)),
    Sample(lambda make: (make(5, 4, low=0, high=2), make(5, 4, low=0, high=2), True)),
]


@npu_op(
    "npu_giou_backward(Tensor grad, Tensor bboxes, Tensor gtboxes, bool trans=False, "
    "bool is_cross=False, int mode=0) -> (Tensor, Tensor)",
    aclop=True,
)
def npu_giou_backward(grad, bboxes, gtboxes, trans):
    """Gradients of `npu_giou` with respect to `bboxes` and `gtboxes`; trans=True, is_cross=False, mode=0 only."""
    terms, around = _terms(bboxes, gtboxes, trans, False)
    d, found = wide(grad).reshape(1, -1), _iou.Gradient(terms)
    found.iou(d)
    found.union(d / around)
    empty = -d * terms.union / around.square()
    found.around(empty * terms.ch, empty * terms.cw)
    results = found.boxes(trans, _iou.result_dtype(bboxes, gtboxes))
    turned = bboxes.shape[0] != 4
    return tuple(r.t().contiguous() if turned else r for r in results)


@npu_giou_backward.check
def _(grad, bboxes, gtboxes, trans, is_cross, mode):
    must.shape("gtboxes", gtboxes, tuple(bboxes.shape))
    _iou.check_backward(grad, trans, is_cross, mode, _columns(bboxes).shape[1])


npu_giou_backward.samples = [
    Sample(
        lambda make: (
            make(6, 1),
            make(4, 6, low=0, high=2),
            make(4, 6, low=0.1, high=1.6),
            True,
        )
    )
]
