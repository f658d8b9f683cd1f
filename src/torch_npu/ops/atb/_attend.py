"""Attention of sequences that stand one after the other, over dense keys or pages of a cache.

Every ATB attention is a list of `Rows`: query tokens, the keys that they see, a bias and a causal edge. Keys come from
a `Dense` tensor of tokens or from a `Paged` cache, one sequence at a time, so that nothing of the size of all scores
is held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from torch_npu import _errors
from torch_npu.ops._shared._engine import FAR, Problem, Segment, in_blocks, natively

Engine = Callable[[Problem], None]

#: what the kernel multiplies a mask of ones with where the mask is bfloat16 (fp16 masks are added as they are)
BF16_MASK = -3e38


@dataclass(frozen=True)
class Rows:
    """One sequence: its query tokens, how many keys it sees, what is added to its scores."""

    start: int
    length: int
    kv_length: int
    kv_start: int = 0
    bias: torch.Tensor | None = None  # (1 or N, length, kv_length), added to the scores
    edge: int = FAR  # row i sees the keys up to i + edge


class Source(Protocol):
    """Where keys and values come from: `Dense`, `Paged`, or another arrangement of pages."""

    def of(self, index: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (1, Nkv, tokens, D) of one sequence."""


@dataclass(frozen=True)
class Dense:
    """Keys and values of all sequences, (tokens, Nkv, D)."""

    key: torch.Tensor
    value: torch.Tensor

    def of(self, index: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        span = slice(rows.kv_start, rows.kv_start + rows.kv_length)
        return heads_first(self.key[span]), heads_first(self.value[span])


@dataclass(frozen=True)
class Paged:
    """Caches (blocks, block, Nkv, D) and the block table of each sequence."""

    key: torch.Tensor
    value: torch.Tensor
    table: torch.Tensor

    def of(self, index: int, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        ids = self._ids(index, rows.kv_length)
        key, value = (
            cache[ids].flatten(0, 1)[: rows.kv_length] for cache in (self.key, self.value)
        )
        return heads_first(key), heads_first(value)

    def pages(self, sequences: Sequence[Rows]) -> torch.Tensor:
        """(sequences, pages) int64; entries that no token needs are 0."""
        found = [self._ids(i, rows.kv_length) for i, rows in enumerate(sequences)]
        widest = max((len(ids) for ids in found), default=0)
        table = torch.zeros(len(found), max(1, widest), dtype=torch.int64)
        for row, ids in zip(table, found, strict=True):
            row[: len(ids)] = ids
        return table

    def _ids(self, index: int, length: int) -> torch.Tensor:
        blocks, block = self.key.shape[:2]
        if block == 0:
            shape = tuple(self.key.shape)
            expected = "of blocks with tokens"
            raise _errors.BadArgument("key_cache", expected, shape, _errors.ErrCode.PARAM)
        count = -(-length // block)
        ids = self.table[index, :count].long()
        if len(ids) < count:
            expected = f"of at least {count} blocks for {length} tokens"
            raise _errors.BadArgument("block_table", expected, len(ids), _errors.ErrCode.PARAM)
        if count and not 0 <= int(ids.min()) <= int(ids.max()) < blocks:
            expected = f"of block numbers from 0 to {blocks - 1}"
            raise _errors.BadArgument("block_table", expected, ids.tolist(), _errors.ErrCode.VALUE)
        return ids


def heads_first(rows: torch.Tensor) -> torch.Tensor:
    """(tokens, N, D) as (1, N, tokens, D)."""
    return rows.transpose(0, 1).unsqueeze(0)


def by_heads(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """(..., N * D) or (..., N, D) tokens as (..., N, D); tokens stand in the first dimension."""
    return rows.unflatten(1, (heads, -1)) if rows.dim() == 2 else rows


def pages_of(cache: torch.Tensor, heads: int, size: int) -> torch.Tensor:
    """A cache as (blocks, block, N, D): plain, with N * D in one dimension, or NZ (blocks, N * D / c, block, c)."""
    if cache.dim() == 3:
        return cache.unflatten(2, (heads, -1))
    if tuple(cache.shape[2:]) == (heads, size):
        return cache
    return cache.transpose(1, 2).flatten(2).unflatten(2, (heads, size))


def attend(
    engine: Engine,
    query: torch.Tensor,
    source: Source,
    out: torch.Tensor,
    sequences: Sequence[Rows],
    scale: float,
    lse: torch.Tensor | None = None,
) -> None:
    """Writes softmax(scale * Q K^T + bias) V of each sequence into `out` (tokens, N, Dv), and `lse` (N, tokens).

    Tokens of `out` that belong to no sequence stay as they are.
    """
    if engine is natively and isinstance(source, Paged) and _plain(query, source, out, sequences):
        return _paged_natively(query, source, out, sequences, scale, lse)
    for index, rows in enumerate(sequences):
        if rows.length == 0:
            continue
        span = slice(rows.start, rows.start + rows.length)
        key, value = source.of(index, rows)
        made = torch.zeros(
            1, query.shape[1], rows.length, value.shape[3], dtype=out.dtype, device=out.device
        )
        sums = None
        if lse is not None:
            sums = lse.new_full((1, query.shape[1], rows.length), torch.inf)
        segment = Segment(0, rows.length, 0, rows.kv_length, -FAR, rows.edge)
        bias = None if rows.bias is None else rows.bias.unsqueeze(0)
        problem = Problem(
            heads_first(query[span]), key, value, made, [segment], scale, lse=sums, bias=bias
        )
        engine(problem)
        out[span] = made[0].transpose(0, 1)
        if lse is not None and sums is not None:
            lse[:, span] = sums[0]
    return None


def _plain(query, source, out, sequences) -> bool:
    return all(rows.bias is None for rows in sequences) and (
        query.dtype == source.key.dtype == source.value.dtype == out.dtype
    )


def _paged_natively(query, source, out, sequences, scale, lse) -> None:
    """All sequences in one call of the C++ kernel, which reads the pages in place."""
    segments = [Segment(r.start, r.length, 0, r.kv_length, -FAR, r.edge) for r in sequences]
    made = torch.zeros(1, out.shape[1], out.shape[0], out.shape[2], dtype=out.dtype)
    sums = None if lse is None else lse.new_full((1, *lse.shape), torch.inf)
    key, value = (c.transpose(1, 2) for c in (source.key, source.value))
    natively(
        Problem(
            heads_first(query),
            key,
            value,
            made,
            segments,
            scale,
            lse=sums,
            pages=source.pages(sequences),
        )
    )
    for rows in sequences:
        span = slice(rows.start, rows.start + rows.length)
        out[span] = made[0, :, span].transpose(0, 1)
        if lse is not None and sums is not None:
            lse[:, span] = sums[0, :, span]


def starts(lengths: Sequence[int]) -> list[int]:
    """Where each sequence begins when they stand one after the other."""
    found, total = [], 0
    for length in lengths:
        found.append(total)
        total += length
    return found


def integers(values: Any) -> list[int]:
    """Lengths from a tensor on the host or a list."""
    return values.tolist() if isinstance(values, torch.Tensor) else [int(v) for v in values]


def template_bias(
    mask: torch.Tensor, slopes: torch.Tensor, rows: int, columns: int, root: bool
) -> torch.Tensor:
    """The bias (N, rows, columns) that a compressed ALiBi mask stands for: slope times its value at each distance.

    Row i of the last `rows` tokens and column j have the distance i - j. A (256, 256) template holds the values of
    the distances -255 to 255 in its first row and column; further left they grow by 1 a token, or are the square root
    of the distance.
    """
    reach = mask.shape[0] - 1
    distance = torch.arange(columns - rows, columns).unsqueeze(1) - torch.arange(columns)
    template = mask.float()
    values = torch.cat((template[0, 1:].flip(0), template[:, 0]))  # distances -reach .. reach
    found = values[distance.clamp(-reach, reach) + reach]
    beyond = distance > reach
    far = distance.float()
    far = far.sqrt() if root else far + (template[reach, 0] - reach)
    found = torch.where(beyond, far, found)
    return slopes.float().view(-1, 1, 1) * found


__all__ = [
    "BF16_MASK",
    "FAR",
    "Dense",
    "Engine",
    "Paged",
    "Rows",
    "attend",
    "by_heads",
    "in_blocks",
    "integers",
    "natively",
    "pages_of",
    "starts",
    "template_bias",
]
