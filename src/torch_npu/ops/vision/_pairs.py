"""The overlap of upright boxes in pairs, which npu_iou and npu_ptiou share."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.vision._boxes import areas, rows_of

#: added to each side of a box before its area is taken
SIDE = 0.01


def check(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int, *floats: torch.dtype) -> None:
    for name, boxes in (("bboxes", bboxes), ("gtboxes", gtboxes)):
        must.dtype(name, boxes, *floats)
        rows_of(name, boxes)
    must.choice("mode", mode, (0, 1))


def _grown(boxes: torch.Tensor) -> torch.Tensor:
    return torch.cat([boxes[..., :2], boxes[..., 2:] + SIDE], -1)


def _common(bboxes: torch.Tensor, gtboxes: torch.Tensor) -> torch.Tensor:
    low = torch.maximum(gtboxes[:, None, :2], bboxes[None, :, :2])
    high = torch.minimum(gtboxes[:, None, 2:], bboxes[None, :, 2:])
    return torch.cat([low, high], -1)


def exact(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int) -> torch.Tensor:
    """Sides of boxes and of their common part grow by SIDE; in fp32."""
    b, g = wide(bboxes), wide(gtboxes)
    common = _grown(_common(b, g))
    sides = (common[..., 2:] - common[..., :2]).clamp(min=0)
    shared = sides[..., 0] * sides[..., 1]
    truth = areas(_grown(g))[:, None]
    whole = truth if mode == 1 else truth + areas(_grown(b))[None, :] - shared
    return (shared / whole).to(bboxes.dtype)


def half(bboxes: torch.Tensor, gtboxes: torch.Tensor, mode: int) -> torch.Tensor:
    """Every step in float16, sides scaled by 0.2 so that areas fit; only the boxes' own sides grow."""
    b, g = bboxes.half(), gtboxes.half()
    fifth = torch.tensor(0.2, dtype=torch.float16, device=b.device)

    def area(corners: torch.Tensor, grow: bool) -> torch.Tensor:
        sides = corners[..., 2:] - corners[..., :2]
        sides = (sides + SIDE if grow else sides.clamp(min=0)) * fifth
        return sides[..., 0] * sides[..., 1]

    shared, truth = area(_common(b, g), False), area(g, True)[:, None]
    whole = truth if mode == 1 else (area(b, True)[None, :] - shared) + truth
    return (shared / whole).to(bboxes.dtype)
