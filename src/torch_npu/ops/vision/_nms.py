"""Greedy non-maximum suppression in blocks: what the four NMS operators share.

Boxes come sorted by score. A block of them is compared with all boxes kept so far at once, then among itself, so
that memory stays small and Python loops over kept boxes only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_npu.ops.vision._boxes import areas, intersections

#: so small that PyTorch runs the steps on a block on one thread, which is faster
BLOCK = 128

#: which of m boxes (columns) each of n boxes (rows) suppresses
Suppress = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def by_score(scores: torch.Tensor, threshold: float | None = None) -> torch.Tensor:
    """Indices of the scores above the threshold, best first; equal ones by index."""
    order = torch.argsort(scores, descending=True, stable=True)
    return order if threshold is None else order[scores[order] > threshold]


def greedy(count: int, suppress: Suppress, limit: int | None = None) -> torch.Tensor:
    """Places of the boxes that are kept, of `count` boxes in order; `suppress` takes places."""
    kept: list[int] = []
    limit = count if limit is None else limit
    for start in range(0, count, BLOCK):
        block = torch.arange(start, min(start + BLOCK, count))
        alive = torch.ones(len(block), dtype=torch.bool)
        for part in torch.tensor(kept, dtype=torch.long).split(BLOCK):
            alive &= ~suppress(part, block).any(0)
        among = suppress(block, block)
        for i in alive.nonzero()[:, 0].tolist():
            if len(kept) >= limit:
                return torch.tensor(kept, dtype=torch.long)
            if alive[i]:
                kept.append(start + i)
                alive &= ~among[i]
    return torch.tensor(kept, dtype=torch.long)


def upright(boxes: torch.Tensor, threshold: float) -> Suppress:
    """Suppression among upright boxes: IoU above the threshold."""
    sizes = areas(boxes)

    def suppress(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        shared = intersections(boxes[a], boxes[b])
        union = sizes[a][:, None] + sizes[b][None, :] - shared
        return (shared / torch.where(union > 0, union, 1.0)) > threshold

    return suppress
