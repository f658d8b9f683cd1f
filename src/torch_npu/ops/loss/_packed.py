"""Booleans as bits, the first in the lowest bit of the first byte."""

from __future__ import annotations

import torch


def pack(flags, fill):
    """uint8 of 8 flags each; what is missing of the last byte is `fill`."""
    count = flags.shape[0]
    padded = torch.nn.functional.pad(flags.to(torch.int32), (0, -count % 8), value=int(fill))
    return (padded.view(-1, 8) << torch.arange(8, device=flags.device)).sum(-1).to(torch.uint8)


def unpack(packed, count):
    """The first `count` flags."""
    bits = (packed.to(torch.int32)[:, None] >> torch.arange(8, device=packed.device)) & 1
    return bits.flatten()[:count].bool()
