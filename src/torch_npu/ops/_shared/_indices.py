"""Indices read by checks: the first value that breaks a rule is named with its place."""

from __future__ import annotations

import torch

from torch_npu._errors import BadArgument, ErrCode
from torch_npu.ops import _check as must


def first_bad(name: str, expected: str, values: torch.Tensor, bad: torch.Tensor) -> None:
    """Raises for the first element of `values` where `bad` holds; both are host tensors."""
    places = bad.nonzero()
    if len(places):
        place = tuple(places[0].tolist())
        where = place[0] if len(place) == 1 else place
        raise BadArgument(name, expected, f"{values[place].item()} at index {where}", ErrCode.VALUE)


def inside(name: str, indices: torch.Tensor, high: int, low: int = 0) -> None:
    """Every index lies in [low, high); nothing is read of a fake tensor."""
    if must.has_data(indices):
        host = indices.cpu()
        first_bad(name, f"in [{low}, {high})", host, (host < low) | (host >= high))
