"""Constraints that the ATB attentions share."""

from __future__ import annotations

from typing import Any

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must

FLOATS = (torch.float16, torch.bfloat16)
#: chips whose kernels of paged caches read NZ and nothing else (ATB, kernels/mixkernels: ascend310p, ascend910)
NZ_ALONE = ("310P", "910A")


def family(argument: str, *families: str) -> None:
    """The operator exists on the chip."""
    chip = chips.current()
    expected = f"on a chip of series {must.one_of(families)}"
    received = f"a tensor on {chip.name} ({chip.family})"
    must.hold(chip.family in families, argument, expected, received, ErrCode.NOT_SUPPORT)


def heads(num_heads: int, num_kv_heads: int, names: tuple[str, str]) -> None:
    """Each key head serves the same number of query heads; 0 key heads means as many as those."""
    must.hold(num_heads > 0, names[0], "positive", num_heads)
    expected = f"0 or a divisor of '{names[0]}' ({num_heads})"
    fits = num_kv_heads == 0 or (num_kv_heads > 0 and num_heads % num_kv_heads == 0)
    must.hold(fits, names[1], expected, num_kv_heads)


def written(name: str, tensor: torch.Tensor) -> None:
    """ATB writes results by their address alone (AtTensor2AtbTensor of op-plugin)."""
    expected = "contiguous, as ATB writes it"
    received = f"strides {tensor.stride()} of {tuple(tensor.shape)}"
    upstream = "at_tensor is not contiguous"
    must.hold(tensor.is_contiguous(), name, expected, received, ErrCode.PARAM, upstream)


def tokens(name: str, rows: torch.Tensor, count: int) -> None:
    """(tokens, heads, size) with the given heads, or (tokens, heads * size)."""
    must.ndim(name, rows, 2, 3)
    if rows.dim() == 3:
        must.shape(name, rows, (None, count, None))
    else:
        expected = f"of a last dimension divisible by {count} heads"
        must.hold(rows.shape[1] % count == 0, name, expected, tuple(rows.shape), ErrCode.PARAM)


def on_host(name: str, lengths: torch.Tensor, ndim: int = 1) -> None:
    """ATB reads lengths on the host: they are int32 CPU tensors."""
    expected = "a CPU tensor (ATB reads it on the host)"
    must.hold(lengths.device.type in ("cpu", "meta"), name, expected, f"one on {lengths.device}")
    must.dtype(name, lengths, torch.int32)
    must.ndim(name, lengths, 1, ndim)


def keys(name: str, lengths: torch.Tensor) -> None:
    """The keys of paged sequences: on the host, or on the device where the kernels of 310P and 910A read them."""
    if chips.current().family not in NZ_ALONE:
        on_host(name, lengths)
        return
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
    """(blocks, block, heads, size) or (blocks, block, heads * size)."""
    must.ndim(name, pages, 3, 4)
    fits = tuple(pages.shape[2:]) in ((count, size), (count * size,))
    expected = f"of shape (*, *, {count}, {size}) or (*, *, {count * size})"
    must.hold(fits, name, expected, tuple(pages.shape), ErrCode.PARAM)


def scale(name: str, value: float) -> None:
    """Paged attention of Ascend950 takes factors up to 1."""
    if chips.current().family == "A5":
        must.hold(0 < value <= 1, name, "above 0 and at most 1 on Ascend950", value)


def table(
    block_table: torch.Tensor, batch: int, name: str = "block_table", exact: bool = False
) -> None:
    must.dtype(name, block_table, torch.int32)
    must.ndim(name, block_table, 2)
    rows = block_table.shape[0]
    fits = rows == batch if exact else rows >= batch
    expected = f"of {'' if exact else 'at least '}{batch} rows, one a sequence"
    must.hold(fits, name, expected, tuple(block_table.shape))


def workspace(query: torch.Tensor) -> torch.Tensor:
    """What the workspace forms return: the card's scratch memory, of which nothing is needed here."""
    return query.new_zeros((1024,), dtype=torch.uint8)
