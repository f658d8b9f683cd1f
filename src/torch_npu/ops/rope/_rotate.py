"""The rotations of the rotary embeddings: pairs of elements, turned by an angle.

| mode | the partner of an element |
|---|---|
| half | D/2 away |
| interleave | its neighbor |
| quarter | D/4 away, in each half by itself |
| interleave-half | its neighbor; the result comes sorted, even positions first, then odd ones |
"""

from __future__ import annotations

import torch

MODES = ("half", "interleave", "quarter", "interleave-half")


def arrange(x: torch.Tensor, mode: str) -> torch.Tensor:
    """x in the order in which the mode turns it: even positions before odd ones, or as it is."""
    if mode == "interleave-half":
        return torch.cat((x[..., ::2], x[..., 1::2]), -1)
    return x


def restore(x: torch.Tensor, mode: str) -> torch.Tensor:
    """The inverse of `arrange`."""
    if mode == "interleave-half":
        return torch.stack(x.chunk(2, -1), -1).flatten(-2)
    return x


def turn(x: torch.Tensor, mode: str) -> torch.Tensor:
    """x turned by a quarter of a circle: (a, b) becomes (-b, a). Its transpose is its negative."""
    if mode == "interleave":
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    if mode == "quarter":
        a, b, c, d = x.chunk(4, -1)
        return torch.cat((-b, a, -d, c), -1)
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str) -> torch.Tensor:
    """x * cos + turn(x) * sin, in the dtype that it is given."""
    x = arrange(x, mode)
    return x * cos + turn(x, mode) * sin


def divisor(mode: str) -> int:
    """What the last dimension must be a multiple of."""
    return 4 if mode == "quarter" else 2
