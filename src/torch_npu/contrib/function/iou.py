"""Overlaps of boxes, as deprecated names around the operators of torch_npu."""

from __future__ import annotations

import torch

from torch_npu.contrib._checks import deprecated, require
from torch_npu.contrib._names import torch_npu

__all__: list[str] = []


def npu_iou(
    boxes1: torch.Tensor,
    boxes2: torch.Tensor,
    mode: str = "ptiou",
    is_normalized: bool = False,
    normalized_scale: float = 100.0,
) -> torch.Tensor:
    r"""The overlap of every box of one list with every box of the other.

    With the intersection I and the union U, `iou` is (I + 0.001) / (U + 0.001) and `ptiou` is I / (U + 0.001).
    It has no gradient.

    Args:
        boxes1: boxes (x0, y0, x1, y1), shape (n, 4).
        boxes2: shape (m, 4).
        mode: "iou" or "ptiou".
        is_normalized: whether the coordinates are fractions; they are multiplied by `normalized_scale` then, so
            that 0.001 stays small.
        normalized_scale: see above.

    Returns:
        The overlaps, shape (n, m).
    """
    deprecated("npu_iou", "torch_npu.npu_iou or torch_npu.npu_ptiou")
    require(mode in ("iou", "ptiou"), "npu_iou", "mode", "'iou' or 'ptiou'", repr(mode))
    boxes1, boxes2 = boxes1.float(), boxes2.float()
    if is_normalized:
        boxes1, boxes2 = boxes1 * normalized_scale, boxes2 * normalized_scale
    compute = torch_npu.npu_iou if mode == "iou" else torch_npu.npu_ptiou
    return compute(boxes2, boxes1)


npu_ptiou = npu_iou


def npu_giou(boxes1: torch.Tensor, boxes2: torch.Tensor, is_permuted: bool = True) -> torch.Tensor:
    """The generalized overlap of each box with its partner, with a gradient.

    Args:
        boxes1: predicted boxes (x, y, w, h), shape (n, 4).
        boxes2: the boxes that they should be, of the same shape.
        is_permuted: whether the tensors are to be turned to (4, n), which the operator takes.

    Returns:
        The overlaps.
    """
    deprecated("npu_giou", "torch_npu.npu_giou")
    require(
        boxes1.shape == boxes2.shape,
        "npu_giou",
        "boxes2",
        f"of the shape of 'boxes1' {tuple(boxes1.shape)}",
        tuple(boxes2.shape),
    )
    boxes1, boxes2 = boxes1.float(), boxes2.float()
    if is_permuted:
        boxes1, boxes2 = boxes1.permute(1, 0), boxes2.permute(1, 0)
    return torch_npu.npu_giou(boxes1, boxes2, trans=True, is_cross=False)


def npu_diou(
    boxes1: torch.Tensor,
    boxes2: torch.Tensor,
    trans: bool = True,
    is_cross: bool = False,
    mode: int = 0,
) -> torch.Tensor:
    """The overlap of each box with its partner, less the distance of their centers; see `torch_npu.npu_diou`.

    Args:
        boxes1: predicted boxes (x, y, w, h), shape (4, n).
        boxes2: the boxes that they should be.
        trans: True for (x, y, w, h), False for (x0, y0, x1, y1).
        is_cross: whether every box meets every other.
        mode: 0 for the union in the denominator, 1 for the predicted box.

    Returns:
        The overlaps, shape (1, n).
    """
    deprecated("function.npu_diou", "torch_npu.npu_diou")
    return torch_npu.npu_diou(boxes1, boxes2, trans, is_cross, mode)


def npu_ciou(
    boxes1: torch.Tensor,
    boxes2: torch.Tensor,
    trans: bool = True,
    is_cross: bool = False,
    mode: int = 0,
) -> torch.Tensor:
    """`npu_diou` with a term for the difference of proportions; see `torch_npu.npu_ciou`.

    Args:
        boxes1: predicted boxes (x, y, w, h), shape (4, n).
        boxes2: the boxes that they should be.
        trans: True for (x, y, w, h), False for (x0, y0, x1, y1).
        is_cross: whether every box meets every other.
        mode: 0 for the union in the denominator, 1 for the predicted box.

    Returns:
        The overlaps, shape (1, n).
    """
    deprecated("function.npu_ciou", "torch_npu.npu_ciou")
    return torch_npu.npu_ciou(boxes1, boxes2, trans, is_cross, mode, True)
