"""Constraints that the ATB attentions share."""

from __future__ import annotations

from typing import Any

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must

FLOATS = (torch.float16, torch.bfloat16)


def family(argument: str, *families: str) -> None:
    """The operator exists on the chip."""
    chip = chips.current()
    expected = f"on a chip of series {must.one_of(families)}"
    received = f"a tensor on {chip.name} ({chip.family})"
    must.hold(chip.family in families, argument, expected, received, ErrCode.NOT_SUPPORT)


def heads(num_heads: int, num_kv_heads: int, names: tuple[str, str]) -> None:
    """Head counts are positive, and each key head serves the same number of query heads."""
    must.hold(num_heads > 0, names[0], "positive", num_heads)
    must.hold(num_kv_heads > 0, names[1], "positive", num_kv_heads)
    expected = f"a divisor of '{names[0]}' ({num_heads})"
    must.hold(num_heads % num_kv_heads == 0, names[1], expected, num_kv_heads)


def tokens(name: str, rows: torch.Tensor, count: int) -> None:
    """(tokens, heads, size) with the given heads, or (tokens, heads * size)."""
    must.ndim(name, rows, 2, 3)
    if rows.dim() == 3:
        must.shape(name, rows, (None, count, None))
    else:
        expected = f"of a last dimension divisible by {count} heads"
        must.hold(rows.shape[1] % count == 0, name, expected, tuple(rows.shape), ErrCode.PARAM)


def on_host(name: str, lengths: torch.Tensor) -> None:
    """ATB reads lengths on the host: they are int32 CPU tensors."""
    expected = "a CPU tensor (ATB reads it on the host)"
    must.hold(lengths.device.type in ("cpu", "meta"), name, expected, f"one on {lengths.device}")
    must.dtype(name, lengths, torch.int32)
    must.ndim(name, lengths, 1)


def lengths(name: str, given: Any, most: int | None = None) -> list[int] | None:
    """The lengths if they can be read here, none of them negative, at most `most` in all."""
    if isinstance(given, torch.Tensor):
        if not must.has_data(given):
            return None
        given = given.tolist()
    if not all(type(n) is int for n in given):
        return None  # symbols of a traced graph
    least = min(given, default=0)
    must.hold(least >= 0, name, "of lengths of at least 0", least)
    if most is not None:
        must.hold(sum(given) <= most, name, f"of at most {most} tokens in all", sum(given))
    return given


def cache(name: str, pages: torch.Tensor, count: int, size: int) -> None:
    """(blocks, block, heads, size), (blocks, block, heads * size), or NZ (blocks, heads * size / c, block, c)."""
    must.ndim(name, pages, 3, 4)
    width, nz_width = count * size, 32 // pages.element_size()
    shape = tuple(pages.shape)
    fits = (
        shape[2] == width
        if len(shape) == 3
        else shape[2:] == (count, size) or (shape[3] == nz_width and shape[1] * nz_width == width)
    )
    expected = f"of shape (*, *, {count}, {size}), (*, *, {width}) or (*, {width // nz_width}, *, {nz_width})"
    must.hold(fits, name, expected, shape, ErrCode.PARAM)


def table(block_table: torch.Tensor, batch: int, name: str = "block_table") -> None:
    must.dtype(name, block_table, torch.int32)
    must.ndim(name, block_table, 2)
    expected = f"of at least {batch} rows, one a sequence"
    must.hold(block_table.shape[0] >= batch, name, expected, tuple(block_table.shape))


def workspace(query: torch.Tensor) -> torch.Tensor:
    """What the workspace forms return: the card's scratch memory, of which nothing is needed here."""
    return query.new_zeros((1024,), dtype=torch.uint8)
