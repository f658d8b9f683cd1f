"""References for the folder: numpy float32 step by step, Python's own rounding, bits by loops. No code under test."""

from __future__ import annotations

import math

import numpy as np
import torch

DEVICE = "npu"
NAN, INF = math.nan, math.inf


def npu(values, dtype=None) -> torch.Tensor:
    """A tensor on the device under test from a list or a host tensor."""
    tensor = values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=dtype)
    return tensor.to(DEVICE)


def f32(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().float().numpy()


def whole(values: np.ndarray, low: int, high: int) -> torch.Tensor:
    """Halves to even by Python's `round`, saturation, NaN to 0; int64 on the host."""
    flat = []
    for value in np.asarray(values, dtype=np.float64).reshape(-1).tolist():
        if math.isnan(value):
            flat.append(0)
        elif math.isinf(value):
            flat.append(high if value > 0 else low)
        else:
            flat.append(min(max(round(value), low), high))
    return torch.tensor(flat, dtype=torch.int64).reshape(values.shape)


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The int4 values of an int32 or byte tensor, the lowest bits first, one by one; int64 on the host."""
    bits = packed.element_size() * 8
    rows = []
    for word in packed.cpu().reshape(-1).tolist():
        word %= 1 << bits
        found = [(word >> shift) & 15 for shift in range(0, bits, 4)]
        rows.append([v - 16 if v > 7 else v for v in found])
    return torch.tensor(rows, dtype=torch.int64).reshape(*packed.shape[:-1], -1)


def words(values: torch.Tensor) -> torch.Tensor:
    """int4 values packed eight to an int32, one by one."""
    flat = values.cpu().reshape(-1, 8).tolist()
    packed = [sum((v % 16) << (4 * i) for i, v in enumerate(row)) for row in flat]
    signed = [p - (1 << 32) if p >= 1 << 31 else p for p in packed]
    return torch.tensor(signed, dtype=torch.int32).reshape(*values.shape[:-1], -1)


def group_of(ends: list[int], row: int) -> int:
    """The group of a row, by walking the list."""
    return next((g for g, end in enumerate(ends) if row < end), len(ends) - 1)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal integers, whatever their widths."""
    assert actual.shape == expected.shape
    assert torch.equal(actual.cpu().long(), expected.long())
