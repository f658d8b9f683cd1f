"""Which keys a query sees: the sparse modes of training attention, and the compressed masks that go with them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from torch_npu.ops import _check as must
from torch_npu.ops.attention._layouts import Segment

#: an edge that no sequence reaches
FAR = 2**40

DEFAULT, ALL, LEFT_UP, RIGHT_DOWN, BAND, PREFIX, PREFIX_SMALL, RIGHT_DOWN_BAND, LEFT_UP_BAND = (
    range(9)
)

#: modes whose mask is a fixed 2048-wide triangle, whatever the sequence length
COMPRESSED = (LEFT_UP, RIGHT_DOWN, BAND, PREFIX_SMALL, RIGHT_DOWN_BAND, LEFT_UP_BAND)
SIDE = 2048


class Band(NamedTuple):
    """Row i sees column j when i + low <= j <= i + high, or j < prefix."""

    low: int = -FAR
    high: int = FAR
    prefix: int = 0


def bands(
    parts: list[Segment], mode: int, before: int, after: int, prefix: list[int] | None
) -> list[Band]:
    """The band of each segment. `before` and `after` are upstream's pre_tokens and next_tokens."""
    taking_part = [index for index, s in enumerate(parts) if s.q_length > 0] or [0]
    found = []
    for index, part in enumerate(parts):
        corner = (
            part.kv_length - part.q_length
        )  # the shift that puts the diagonal in the lower right corner
        between = Band(corner - before, corner + after)
        if mode == DEFAULT:
            band = Band(-before, after)
        elif mode == ALL:
            band = Band()
        elif mode == LEFT_UP:
            band = Band(high=0)
        elif mode == RIGHT_DOWN:
            band = Band(high=corner)
        elif mode == BAND:
            band = between
        elif mode in (PREFIX, PREFIX_SMALL):
            band = Band(high=corner, prefix=prefix[index] if prefix else 0)
        elif mode == RIGHT_DOWN_BAND:
            band = between if index == taking_part[-1] else Band(high=corner)
        else:
            band = between if index == taking_part[0] else Band(high=0)
        found.append(band)
    return found


def prefix_counts(prefix: Sequence[int] | None, parts: list[Segment]) -> bool:
    """Whether there is a prefix for each segment that shows what lies left of the triangle, and no more than its keys."""
    if prefix is None or len(prefix) != len(parts):
        return False
    pairs = zip(prefix, parts, strict=True)
    return all(max(0, s.kv_length - s.q_length) <= n <= s.kv_length for n, s in pairs)


def hidden_by_band(band: Band, rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """The band as a mask (rows, columns), True where hidden."""
    i = torch.arange(rows, device=device).unsqueeze(1)
    j = torch.arange(columns, device=device)
    return ((j - i < band.low) | (j - i > band.high)) & (j >= band.prefix)


def of_sequences(
    mask: torch.Tensor, parts: list[Segment], longest: tuple[int, int]
) -> torch.Tensor:
    """A mask of all rows and keys of TND as one of each sequence, (B, 1, max Sq, max Skv)."""
    found = mask.new_zeros(len(parts), 1, *longest)
    for index, s in enumerate(parts):
        rows, columns = (
            slice(s.q_start, s.q_start + s.q_length),
            slice(s.kv_start, s.kv_start + s.kv_length),
        )
        found[index, 0, : s.q_length, : s.kv_length] = mask[rows, columns]
    return found


def compressed_shape(mode: int) -> tuple[int, int]:
    return (SIDE // 2 * 3 if mode == PREFIX_SMALL else SIDE, SIDE)


@functools.cache
def compressed(mode: int) -> torch.Tensor:
    """The mask that upstream asks for in a compressed mode, on the CPU; not for fake modes, whose tensors would stay."""
    triangle = torch.ones(SIDE, SIDE, dtype=torch.bool).triu_(1)
    if mode != PREFIX_SMALL:
        return triangle
    rectangle = torch.zeros(SIDE // 2, SIDE, dtype=torch.bool)
    rectangle[:, SIDE // 2 :] = True
    return torch.cat([triangle, rectangle])


#: masks already found right -> (version, mode)
_known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def check_compressed(mask: torch.Tensor, mode: int) -> None:
    """The mask has the one content that the mode allows; the card would compute something else."""
    shape = compressed_shape(mode)
    must.shape("atten_mask", mask, (1, 1, *shape) if mask.dim() == 4 else shape)
    seen = (mask._version, mode == PREFIX_SMALL)
    if not must.has_data(mask) or _known.get(mask) == seen:
        return
    same = torch.equal(mask.view(shape).bool().cpu(), compressed(mode))
    words = (
        "triangle, True above the diagonal"
        if mode != PREFIX_SMALL
        else "triangle over half a rectangle"
    )
    must.hold(same, "atten_mask", f"the compressed {words} (sparse_mode {mode})", "other values")
    _known[mask] = seen
