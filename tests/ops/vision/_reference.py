"""Plain loops that the tests of this folder share: overlaps of two boxes, suppression, random boxes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch


def boxes(n: int, seed: int = 0, span: float = 100, side: float = 40) -> torch.Tensor:
    """n upright boxes x1, y1, x2, y2, on the host."""
    source = torch.Generator().manual_seed(seed)
    low = torch.rand(n, 2, generator=source) * span
    return torch.cat([low, low + torch.rand(n, 2, generator=source) * side + 1], 1)


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two upright boxes."""
    w = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    h = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h
    return w * h / union if union > 0 else 0.0


def nms(
    rows: list[list[float]],
    scores: list[float],
    threshold: float,
    overlap: Callable[[Sequence[float], Sequence[float]], float] = iou,
    least: float = -math.inf,
    limit: int | None = None,
) -> list[int]:
    """Greedy suppression; equal scores by index."""
    kept: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: (-scores[i], i)):
        if limit is not None and len(kept) == limit:
            break
        if scores[i] > least and all(overlap(rows[k], rows[i]) <= threshold for k in kept):
            kept.append(i)
    return kept


def corners(box: Sequence[float], trans: bool) -> tuple[float, float, float, float]:
    a, b, c, d = box
    return (a - c / 2, b - d / 2, a + c / 2, b + d / 2) if trans else (a, b, c, d)


def terms(a: Sequence[float], b: Sequence[float], mode: int = 0) -> dict[str, float]:
    """What GIoU, DIoU and CIoU are made of, for two boxes x1, y1, x2, y2."""
    w1, h1, w2, h2 = a[2] - a[0], a[3] - a[1], b[2] - b[0], b[3] - b[1]
    shared = max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(
        0.0, min(a[3], b[3]) - max(a[1], b[1])
    )
    union = w1 * h1 + w2 * h2 - shared
    cw, ch = max(a[2], b[2]) - min(a[0], b[0]), max(a[3], b[3]) - min(a[1], b[1])
    share = shared / (w2 * h2 if mode == 1 else union)
    angle = math.atan(w2 / h2) - math.atan(w1 / h1)
    v = 4 / math.pi**2 * angle**2
    distance = ((a[0] + a[2] - b[0] - b[2]) ** 2 + (a[1] + a[3] - b[1] - b[3]) ** 2) / 4
    far = distance / (cw**2 + ch**2)
    return {
        "giou": share - (cw * ch - union) / (cw * ch),
        "diou": share - far,
        "ciou": share - far - (v * v / (1 - share + v) if v else 0.0),
        "angle": angle,
        "share": share,
    }


def table(
    name: str, b: torch.Tensor, g: torch.Tensor, trans: bool, cross: bool, mode: int = 0
) -> torch.Tensor:
    """(m, n), or (1, n) box by box, of (4, n) and (4, m) boxes, in fp64."""
    left = [corners(r, trans) for r in b.double().t().tolist()]
    right = [corners(r, trans) for r in g.double().t().tolist()]
    rows = (
        [[terms(x, y, mode)[name] for x in left] for y in right]
        if cross
        else [[terms(x, y, mode)[name] for x, y in zip(left, right, strict=True)]]
    )
    return torch.tensor(rows, dtype=torch.float64)


def centered(n: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(4, n) boxes x, y, w, h on the device."""
    source = torch.Generator().manual_seed(seed)
    value = torch.rand(4, n, generator=source, dtype=torch.float64)
    value[2:] += 0.3
    return value.to(dtype).npu()
