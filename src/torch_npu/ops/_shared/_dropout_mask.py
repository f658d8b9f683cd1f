"""The masks of the dropout operators.

A bit mask is a 1-D uint8 tensor, one bit for each element in row-major order, the lowest bit of a
byte first, padded to a multiple of 128 bits. A byte mask is a uint8 tensor of zeros and ones. In
both, a set element is kept.
"""

from __future__ import annotations

import math

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._shared._floats import vector_floats

ALIGNMENT = 128


def aligned(count: int) -> int:
    """The number of elements that a mask for `count` elements covers."""
    return (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def draw(
    count: int, p: float, device: torch.device, generator: torch.Generator | None
) -> torch.Tensor:
    """`count` booleans, each False with probability p."""
    return torch.empty(count, device=device).uniform_(generator=generator) >= p


def pack(keep: torch.Tensor) -> torch.Tensor:
    """Booleans (a multiple of 8) to bytes, the first one in the lowest bit."""
    bits = keep.view(-1, 8).to(torch.uint8)
    places = torch.arange(8, dtype=torch.uint8, device=keep.device)
    return (bits << places).sum(-1, dtype=torch.uint8)


def unpack(mask: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The booleans of a bit mask for a tensor of the given shape."""
    places = torch.arange(8, dtype=torch.uint8, device=mask.device)
    bits = (mask.unsqueeze(-1) >> places) & 1
    return bits.flatten()[: math.prod(shape)].view(shape).bool()


def drop(x: torch.Tensor, keep: torch.Tensor, p: float) -> torch.Tensor:
    """x / (1 - p) where kept, 0 elsewhere; all zeros for p = 1."""
    scaled = wide(x) / (1 - p) if p < 1 else torch.zeros_like(x)
    return torch.where(keep, scaled, 0).to(x.dtype)


def check_probability(p: float, name: str = "p") -> None:
    must.hold(0 <= p <= 1, name, "from 0 to 1", p)


def check_input(name: str, x: torch.Tensor) -> None:
    must.dtype(name, x, *vector_floats())
    must.ndim(name, x, 0, 8)


def check_bit_mask(mask: torch.Tensor, x: torch.Tensor) -> None:
    """At least the bits of x; more are not read."""
    must.dtype("mask", mask, torch.uint8)
    need = aligned(x.numel()) // 8
    expected = f"of at least {need} bytes"
    must.hold(mask.numel() >= need, "mask", expected, tuple(mask.shape), ErrCode.PARAM)
