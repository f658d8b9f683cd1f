"""Tokens in caches of pages: writing them to slots, and gathering a sequence's pages by its block table.

| cache_mode | cache | a token in it |
|---|---|---|
| Norm | (blocks, block, N, D) | `cache[slot // block, slot % block]` |
| PA_NZ | (blocks, N * D / c, block, c) or (blocks, N, D / c, block, c) | `cache[slot // block, ..., slot % block, :]` |

c elements fill 32 bytes. Bytes are moved, never values, so every dtype goes through the integers of its size.
"""

from __future__ import annotations

import torch

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes as integers of its element size: indexing does not know every dtype."""
    return tensor.view(_INTEGERS[tensor.element_size()])


def nz_width(tensor: torch.Tensor) -> int:
    """The elements that fill 32 bytes, the last dimension of a PA_NZ cache."""
    return 32 // tensor.element_size()


def tokens_first(cache: torch.Tensor, nz: bool) -> torch.Tensor:
    """A view of the cache as (blocks, block, *token)."""
    return cache.movedim(-2, 1) if nz else cache


def write(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, nz: bool = False) -> None:
    """Writes row t of `rows` (tokens, ...) into slot `slots[t]` of the cache; a negative slot is skipped.

    No shape depends on data: a skipped token repeats the write of the last valid one, or puts back what stands in
    the first slot where none is valid.
    """
    if rows.numel() == 0 or cache.numel() == 0:
        return
    pages = tokens_first(bits(cache), nz)
    block, token = pages.shape[1], pages.shape[2:]
    rows = bits(rows.contiguous()).reshape(-1, *token)
    valid = slots >= 0
    last = slots.shape[0] - 1 - valid.flip(0).long().argmax(0, keepdim=True)
    slot = torch.where(valid, slots, slots[last].clamp(min=0)).long()
    page, offset = slot.div(block, rounding_mode="floor"), slot.remainder(block)
    spare = torch.where(valid.any(), rows[last], pages[page[last], offset[last]])
    mask = valid.view(-1, *(1 for _ in token))
    pages.index_put_((page, offset), torch.where(mask, rows, spare))


def spans(lengths: list[int], cumulative: bool) -> list[tuple[int, int]]:
    """(first token, tokens) of each sequence in the gathered rows."""
    if cumulative:
        return [(a, b - a) for a, b in zip(lengths, lengths[1:], strict=False)]
    found, start = [], 0
    for length in lengths:
        found.append((start, length))
        start += length
    return found


def read(
    target: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    lengths: list[int],
    cumulative: bool,
    starts: list[int] | None,
    nz: bool,
) -> None:
    """Copies the tokens of each sequence from its pages into consecutive rows of `target` (tokens, ...).

    A sequence begins with the whole page that holds its start (`start // block`). Tokens whose page lies outside the
    cache, or past the end of the table, become 0; rows that no sequence covers stay as they are.
    """
    pages = tokens_first(bits(cache), nz)
    blocks, block = pages.shape[:2]
    into = bits(target)
    for index, (first, length) in enumerate(spans(lengths, cumulative)):
        length = min(length, into.shape[0] - first)
        if length <= 0:
            continue
        if block == 0:  # no token fits into a page
            into[first : first + length] = 0
            continue
        skipped = 0 if starts is None else starts[index] // block
        ids = table[index, skipped : skipped + -(-length // block)].long()
        inside = (ids >= 0) & (ids < blocks)
        rows = (
            pages[torch.where(inside, ids, 0)] if blocks else pages.new_zeros(0, *pages.shape[1:])
        )
        rows = rows.masked_fill_(~inside.view(-1, *(1 for _ in pages.shape[1:])), 0)
        rows = rows.flatten(0, 1)[:length].reshape(-1, *into.shape[1:])
        into[first : first + rows.shape[0]] = rows
        into[first + rows.shape[0] : first + length] = 0


def write_native(
    cache: torch.Tensor,
    slots: torch.Tensor,
    rows: torch.Tensor,
    nz: bool,
    *second: torch.Tensor,
) -> None:
    """`write` in C++ (csrc/kernels/pages.cpp) for a contiguous cache; `second`: another one and its rows."""
    others = [bits(tensor.contiguous()) for tensor in second]
    torch.ops.softnpu.write_pages(bits(cache), slots, bits(rows.contiguous()), nz, *others)


def read_native(
    target: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    lengths: list[int],
    cumulative: bool,
    starts: list[int] | None,
    nz: bool,
    second: torch.Tensor,
    second_cache: torch.Tensor,
) -> None:
    """`read` in C++ for two contiguous caches and targets of as many tokens."""
    block = cache.shape[-2] if nz else cache.shape[1]
    found = spans(lengths, cumulative)
    room = target.shape[0]
    skipped = [0] * len(found) if starts is None else [start // block for start in starts]
    torch.ops.softnpu.read_pages(
        bits(target), bits(cache), table, [min(first, room) for first, _ in found],
        [max(0, min(length, room - first)) for first, length in found], skipped, nz,
        bits(second), bits(second_cache),
    )  # fmt: skip


def contiguous(*tensors: torch.Tensor) -> bool:
    """What the native forms ask for: plain, not empty memory."""
    return all(t.is_contiguous() and t.numel() > 0 for t in tensors)
