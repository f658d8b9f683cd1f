"""Rotated boxes: the exact area that two of them share, for many pairs at once.

A box is moved into the frame of the other one, where that is upright and centered. By Green's theorem the shared
area is the integral of clip(x, -a, a) dy along the first box's boundary, as far as |y| <= b: a sum over four edges,
each piecewise linear. It is continuous in the boxes, so touching, equal and degenerate boxes need no special case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from torch_npu.ops import _check as must
from torch_npu.ops.vision._boxes import FLOATS

#: how many pairs are worked on at once: so few that they stay in the cache, and each step on one thread
PAIRS = 1 << 11
#: errors of a shared area, relative to the smaller of both areas
ROUNDING = 1e-13


class Rectangles(NamedTuple):
    """Centers, half sides, and cosine and sine of the angle; each a tensor of one shape, in fp64."""

    x: torch.Tensor
    y: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    def at(self, index: torch.Tensor) -> Rectangles:
        """The rectangles at these places of the flattened tensors."""
        return Rectangles(*(t.reshape(-1)[index] for t in self))

    def area(self) -> torch.Tensor:
        return 4 * self.a * self.b


def rectangles(boxes: torch.Tensor, by_corners: bool, turn: float = 1.0) -> Rectangles:
    """(..., 5) boxes: x, y, w, h and degrees, or x1, y1, x2, y2 and degrees; `turn` is the sense of rotation."""
    p, q, r, s, t = boxes.double().unbind(-1)
    if by_corners:
        p, q, r, s = (p + r) / 2, (q + s) / 2, r - p, s - q
    angle = torch.deg2rad(t) * turn
    return Rectangles(p, q, r.abs() / 2, s.abs() / 2, angle.cos(), angle.sin())


def shared_area(one: Rectangles, other: Rectangles) -> torch.Tensor:
    """The area that rectangles share, place by place.

    The smaller one gives the frame, so that errors are small against its area; what is no larger than they are
    counts as nothing shared.
    """
    swap = one.area() < other.area()
    one, other = (
        Rectangles(*(torch.where(swap, q, p) for p, q in zip(one, other, strict=True))),
        Rectangles(*(torch.where(swap, p, q) for p, q in zip(one, other, strict=True))),
    )
    dx, dy = one.x - other.x, one.y - other.y
    cx, cy = dx * other.cos + dy * other.sin, dy * other.cos - dx * other.sin
    cos = one.cos * other.cos + one.sin * other.sin
    sin = one.sin * other.cos - one.cos * other.sin
    ux, uy, vx, vy = one.a * cos, one.a * sin, -one.b * sin, one.b * cos
    xs = torch.stack([cx + ux + vx, cx - ux + vx, cx - ux - vx, cx + ux - vx])
    ys = torch.stack([cy + uy + vy, cy - uy + vy, cy - uy - vy, cy + uy - vy])
    along = _along_edges(xs, ys, xs.roll(-1, 0), ys.roll(-1, 0), other.a, other.b)
    shared, least = along.sum(0), other.area() * ROUNDING
    return torch.where(shared <= least, 0.0, torch.minimum(shared, other.area()))


def _along_edges(
    x0: torch.Tensor,
    y0: torch.Tensor,
    x1: torch.Tensor,
    y1: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
) -> torch.Tensor:
    """The integral of clip(x, -a, a) dy on the part of each edge with |y| <= b."""
    low, high = torch.minimum(torch.maximum(y0, -b), b), torch.minimum(torch.maximum(y1, -b), b)
    start, end = _between(x0, x1, _part(low, y0, y1)), _between(x0, x1, _part(high, y0, y1))
    enter, leave = _part(-a, start, end), _part(a, start, end)
    first, second = torch.minimum(enter, leave), torch.maximum(enter, leave)

    def clipped(t: torch.Tensor) -> torch.Tensor:
        return torch.minimum(torch.maximum(_between(start, end, t), -a), a)

    p0, p1, p2, p3 = (
        clipped(torch.zeros_like(first)),
        clipped(first),
        clipped(second),
        clipped(torch.ones_like(first)),
    )
    mean = (p0 + p1) * first + (p1 + p2) * (second - first) + (p2 + p3) * (1 - second)
    return mean / 2 * (high - low)


def _part(value: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Which part of the way from start to end the value lies at, in [0, 1]; 0 where there is no way."""
    length = end - start
    still = length == 0
    return torch.where(still, 0.0, (value - start) / torch.where(still, 1.0, length)).clamp(0, 1)


def _between(start: torch.Tensor, end: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    return start + (end - start) * part


def _near(one: Rectangles, other: Rectangles) -> torch.Tensor:
    """Whether the circles around the rectangles meet; else nothing is shared."""
    reach = torch.hypot(one.a, one.b)[:, None] + torch.hypot(other.a, other.b)[None, :]
    dx, dy = one.x[:, None] - other.x[None, :], one.y[:, None] - other.y[None, :]
    return (dx.square() + dy.square() <= reach.square()) & (
        one.area()[:, None] * other.area()[None, :] > 0
    )


def all_pairs(one: Rectangles, other: Rectangles) -> torch.Tensor:
    """The area that each of n rectangles shares with each of m, as (n, m)."""
    n, m = len(one.x), len(other.x)
    result = torch.zeros(n * m, dtype=torch.float64, device=one.x.device)
    place = _near(one, other).reshape(-1).nonzero()[:, 0]
    for part in place.split(PAIRS):
        result[part] = shared_area(one.at(part // m), other.at(part % m))
    return result.reshape(n, m)


def batches(one: Rectangles, other: Rectangles) -> Iterator[tuple[Rectangles, Rectangles]]:
    """The rectangles of each entry of a batch."""
    for i in range(len(one.x)):
        yield Rectangles(*(t[i] for t in one)), Rectangles(*(t[i] for t in other))


def check(self: torch.Tensor, query_boxes: torch.Tensor) -> None:
    """The rules of npu_rotated_iou and npu_rotated_overlaps on their boxes."""
    for name, boxes in (("self", self), ("query_boxes", query_boxes)):
        must.dtype(name, boxes, *FLOATS)
        must.ndim(name, boxes, 3)
        must.shape(name, boxes, (None, None, 5))
    must.hold(
        self.shape[0] == query_boxes.shape[0],
        "query_boxes",
        f"a batch of {self.shape[0]}, as 'self' has",
        query_boxes.shape[0],
    )
