"""Rotated boxes as polygons of shapely: the exact reference of this folder's tests."""

from __future__ import annotations

import numpy as np
import shapely
import torch


def polygons(boxes: torch.Tensor, by_corners: bool = False, turn: float = 1.0) -> np.ndarray:
    """One polygon for each row x, y, w, h, degrees (or x1, y1, x2, y2, degrees), in fp64."""
    rows = boxes.double().numpy().reshape(-1, 5)
    x, y, w, h, t = rows.T
    if by_corners:
        x, y, w, h = (x + w) / 2, (y + h) / 2, w - x, h - y
    angle = np.radians(t) * turn
    along = np.stack([np.cos(angle), np.sin(angle)], -1) * (w / 2)[:, None]
    across = np.stack([-np.sin(angle), np.cos(angle)], -1) * (h / 2)[:, None]
    center = np.stack([x, y], -1)
    ring = [center + a * along + b * across for a, b in ((1, 1), (-1, 1), (-1, -1), (1, -1))]
    return shapely.polygons(np.stack(ring, 1))


def shared(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The areas that polygons share, broadcast."""
    return shapely.area(shapely.intersection(a, b))


def rotated(n: int, seed: int = 0, span: float = 60.0) -> torch.Tensor:
    """n boxes x, y, w, h, degrees."""
    source = torch.Generator().manual_seed(seed)
    parts = torch.rand(n, 5, generator=source)
    scale = torch.tensor([span, span, 30.0, 30.0, 720.0])
    return parts * scale + torch.tensor([0.0, 0.0, 0.5, 0.5, -360.0])
