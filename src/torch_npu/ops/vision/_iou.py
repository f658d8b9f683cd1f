"""IoU with a penalty, box by box: what npu_giou, npu_diou and npu_ciou share, with gradients by hand.

Boxes come as (4, n): rows x1, y1, x2, y2, or center and sides where `trans` is set.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.vision._boxes import FLOATS

#: keeps heights, unions and diagonals of npu_diou and npu_ciou away from 0
EPS = 1e-9


class Corners(NamedTuple):
    """Coordinates of boxes, each a tensor; or gradients with respect to them."""

    x1: torch.Tensor
    y1: torch.Tensor
    x2: torch.Tensor
    y2: torch.Tensor


def check(self: torch.Tensor, gtboxes: torch.Tensor, is_cross: bool, mode: int) -> None:
    """The rules of the three operators on their boxes."""
    for name, boxes in (("self", self), ("gtboxes", gtboxes)):
        must.dtype(name, boxes, *FLOATS)
        must.ndim(name, boxes, 2)
        must.shape(name, boxes, (4, None))
    if not is_cross:
        must.shape("gtboxes", gtboxes, tuple(self.shape))
    must.choice("mode", mode, (0, 1))


def check_form(trans: bool, is_cross: bool, mode: int, where: str) -> None:
    """Boxes by centers, box by box, IoU: all that upstream has in some places."""
    must.hold(trans, "trans", f"True {where}", trans, ErrCode.NOT_SUPPORT)
    must.hold(not is_cross, "is_cross", f"False {where}", is_cross, ErrCode.NOT_SUPPORT)
    must.hold(mode == 0, "mode", f"0 {where}", mode, ErrCode.NOT_SUPPORT)


def check_backward(grad: torch.Tensor, trans: bool, is_cross: bool, mode: int, n: int) -> None:
    """The one form that upstream differentiates."""
    check_form(trans, is_cross, mode, "for the gradient")
    must.hold(grad.numel() == n, "grad", f"of {n} elements", tuple(grad.shape), ErrCode.PARAM)


def result_dtype(self: torch.Tensor, gtboxes: torch.Tensor) -> torch.dtype:
    """float16 where either side is, else the boxes' own."""
    return torch.float16 if torch.float16 in (self.dtype, gtboxes.dtype) else self.dtype


def corners(boxes: torch.Tensor, trans: bool) -> Corners:
    """(4, n) boxes as corners."""
    a, b, c, d = wide(boxes).unbind(0)
    return Corners(a - c / 2, b - d / 2, a + c / 2, b + d / 2) if trans else Corners(a, b, c, d)


def pair(
    self: torch.Tensor, gtboxes: torch.Tensor, trans: bool, is_cross: bool
) -> tuple[Corners, Corners]:
    """Both sides, shaped so that formulas over them give (m, n), or (1, n) box by box."""
    b, g = corners(self, trans), corners(gtboxes, trans)
    if is_cross:
        return Corners(*(t[None, :] for t in b)), Corners(*(t[:, None] for t in g))
    return Corners(*(t[None] for t in b)), Corners(*(t[None] for t in g))


class Overlap:
    """The terms of the formulas: sides, intersection, union, the box around both."""

    def __init__(self, b: Corners, g: Corners, eps: float, tiny: float) -> None:
        self.b, self.g = b, g
        self.w1, self.h1 = b.x2 - b.x1, b.y2 - b.y1 + eps
        self.w2, self.h2 = g.x2 - g.x1, g.y2 - g.y1 + eps
        self.iw = torch.minimum(b.x2, g.x2) - torch.maximum(b.x1, g.x1)
        self.ih = torch.minimum(b.y2, g.y2) - torch.maximum(b.y1, g.y1)
        self.inter = self.iw.clamp(min=0) * self.ih.clamp(min=0)
        self.truth = self.w2 * self.h2 + tiny
        self.union = self.w1 * self.h1 + self.w2 * self.h2 - self.inter + tiny
        self.cw = torch.maximum(b.x2, g.x2) - torch.minimum(b.x1, g.x1)
        self.ch = torch.maximum(b.y2, g.y2) - torch.minimum(b.y1, g.y1)

    def share(self, mode: int) -> torch.Tensor:
        """IoU, or IoF for mode 1."""
        return self.inter / (self.truth if mode == 1 else self.union)

    def distance(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The squared distance of the centers, and the squared diagonal of the box around both."""
        sx = self.g.x1 + self.g.x2 - self.b.x1 - self.b.x2
        sy = self.g.y1 + self.g.y2 - self.b.y1 - self.b.y2
        return (sx.square() + sy.square()) / 4, self.cw.square() + self.ch.square() + EPS

    def atan_sub(self) -> torch.Tensor:
        """The difference of the aspect angles, ground truth minus box."""
        return torch.atan(self.w2 / self.h2) - torch.atan(self.w1 / self.h1)

    def balance(self, atan_sub: torch.Tensor, mode: int) -> tuple[torch.Tensor, torch.Tensor]:
        """v, which measures how aspects differ, and its weight alpha."""
        v = 4 / math.pi**2 * atan_sub.square()
        return v, v / ((1 + EPS) - self.share(mode) + v)


class Gradient:
    """Collects the gradients with respect to the corners of both sides."""

    def __init__(self, terms: Overlap) -> None:
        self.terms = terms
        zero = torch.zeros_like(terms.inter)
        self.b, self.g = [zero.clone() for _ in range(4)], [zero.clone() for _ in range(4)]

    def _extreme(self, axis: int, pick: str, d: torch.Tensor) -> None:
        """d with respect to the smaller or larger of both sides' coordinate; a tie shares it."""
        b, g = self.terms.b[axis], self.terms.g[axis]
        chosen = (b < g) if pick == "min" else (b > g)
        part = torch.where(b == g, 0.5, chosen.to(b.dtype))
        self.b[axis] += d * part
        self.g[axis] += d * (1 - part)

    def inter(self, d: torch.Tensor) -> None:
        t = self.terms
        dw = d * t.ih.clamp(min=0) * (t.iw >= 0)
        dh = d * t.iw.clamp(min=0) * (t.ih >= 0)
        for axis, side in ((0, dw), (1, dh)):
            self._extreme(axis + 2, "min", side)
            self._extreme(axis, "max", -side)

    def sides(self, own: list[torch.Tensor], dw: torch.Tensor, dh: torch.Tensor) -> None:
        """Width and height of one side: `own` is self.b or self.g."""
        own[0] -= dw
        own[2] += dw
        own[1] -= dh
        own[3] += dh

    def union(self, d: torch.Tensor) -> None:
        t = self.terms
        self.sides(self.b, d * t.h1, d * t.w1)
        self.sides(self.g, d * t.h2, d * t.w2)
        self.inter(-d)

    def around(self, dcw: torch.Tensor, dch: torch.Tensor) -> None:
        for axis, side in ((0, dcw), (1, dch)):
            self._extreme(axis + 2, "max", side)
            self._extreme(axis, "min", -side)

    def iou(self, d: torch.Tensor) -> None:
        t = self.terms
        self.inter(d / t.union)
        self.union(-d * t.inter / t.union.square())

    def far(self, d: torch.Tensor) -> None:
        """d with respect to the squared distance over the squared diagonal."""
        t = self.terms
        rho2, c2 = t.distance()
        for axis in (0, 1):
            apart = t.g[axis] + t.g[axis + 2] - t.b[axis] - t.b[axis + 2]
            step = d / c2 * apart / 2
            for corner in (axis, axis + 2):
                self.g[corner] += step
                self.b[corner] -= step
        turn = -d * rho2 / c2.square() * 2
        self.around(turn * t.cw, turn * t.ch)

    def aspect(self, d: torch.Tensor, atan_sub: torch.Tensor) -> None:
        """d with respect to v."""
        t = self.terms
        turn = d * 8 / math.pi**2 * atan_sub
        for own, w, h, sign in ((self.g, t.w2, t.h2, 1), (self.b, t.w1, t.h1, -1)):
            angle = sign * turn / (w.square() + h.square())
            self.sides(own, angle * h, -angle * w)

    def boxes(self, trans: bool, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of both sides as (4, n), in the form in which the boxes came."""
        return tuple(_assembled(own, trans).to(dtype) for own in (self.b, self.g))  # type: ignore[return-value]


def _assembled(corner: list[torch.Tensor], trans: bool) -> torch.Tensor:
    x1, y1, x2, y2 = (t.reshape(-1) for t in corner)
    if trans:
        return torch.stack([x1 + x2, y1 + y2, (x2 - x1) / 2, (y2 - y1) / 2])
    return torch.stack([x1, y1, x2, y2])
