"""What the routing operators share: types, permutations, rows with holes."""

from __future__ import annotations

import torch

#: the floating types that the routing operators take
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def inverse_permutation(order: torch.Tensor) -> torch.Tensor:
    """The permutation that undoes `order`: `inverse[order[i]] == i`."""
    places = torch.arange(order.numel(), device=order.device, dtype=order.dtype)
    return torch.empty_like(order).scatter_(0, order, places)


def take_rows(
    rows: torch.Tensor, index: torch.Tensor, present: torch.Tensor | None = None
) -> torch.Tensor:
    """`rows[index]`, with zeros where `present` is False (or where the index lies outside)."""
    if present is None:
        present = (index >= 0) & (index < rows.size(0))
    shape = (*index.shape, *rows.shape[1:])
    if rows.size(0) == 0:
        return torch.zeros(shape, dtype=rows.dtype, device=rows.device)
    taken = rows.index_select(0, torch.where(present, index, 0).reshape(-1).long()).reshape(shape)
    mask = present.reshape(*present.shape, *[1] * (rows.dim() - 1))
    return torch.where(mask, taken, torch.zeros((), dtype=rows.dtype, device=rows.device))
