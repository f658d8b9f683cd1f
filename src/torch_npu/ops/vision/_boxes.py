"""What the box operators share: their checks, and the areas of upright boxes."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must

#: the dtypes that most of the operators take
FLOATS = (torch.float16, torch.float32)


def rows_of(name: str, boxes: torch.Tensor, width: int = 4) -> None:
    """A matrix of boxes, one a row."""
    must.ndim(name, boxes, 2)
    must.shape(name, boxes, (None, width))


def areas(boxes: torch.Tensor) -> torch.Tensor:
    """Areas of (..., 4) boxes given by two corners; negative where one side is."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def intersections(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The common area of each box of a (n, 4) with each box of b (m, 4), as (n, m)."""

    def side(axis: int) -> torch.Tensor:
        low = torch.maximum(a[:, axis, None], b[:, axis])
        return torch.minimum(a[:, axis + 2, None], b[:, axis + 2]).sub_(low).clamp_(min=0)

    return side(0).mul_(side(1))
