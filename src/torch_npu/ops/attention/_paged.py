"""Caches in pages: the layouts of a page, and the gather of a batch's pages by its block table.

| cache shape | upstream's name |
|---|---|
| (blocks, block_size, N * D) | BnBsH |
| (blocks, N, block_size, D) | BnNBsD |
| (blocks, N, D / c, block_size, c), c values in 32 bytes | NZ |
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu import _errors


def page_shape(cache: torch.Tensor, heads: int) -> tuple[int, int, int]:
    """(heads, block_size, head size) of a cache; `heads` is needed for BnBsH."""
    if cache.dim() == 3:
        return heads, cache.shape[1], cache.shape[2] // heads
    if cache.dim() == 4:
        return cache.shape[1], cache.shape[2], cache.shape[3]
    return cache.shape[1], cache.shape[3], cache.shape[2] * cache.shape[4]


def block_ids(table: torch.Tensor, lengths: Sequence[int], block: int, blocks: int) -> torch.Tensor:
    """The block table up to the longest length; entries that no token needs become 0."""
    counts = [-(-n // block) for n in lengths]
    ids = table[:, : max(counts, default=0)].long()
    if len(set(counts)) > 1:
        used = torch.tensor(counts, device=table.device).unsqueeze(1)
        ids = ids.masked_fill(torch.arange(ids.shape[1], device=table.device) >= used, 0)
    if ids.numel():
        low, high = (int(edge) for edge in ids.aminmax())
        if low < 0 or high >= blocks:
            expected, worst = f"of block numbers from 0 to {blocks - 1}", low if low < 0 else high
            raise _errors.BadArgument("block_table", expected, worst, _errors.ErrCode.VALUE)
    return ids


def in_place(cache: torch.Tensor, heads: int) -> torch.Tensor | None:
    """The cache as (blocks, N, block_size, D) without a copy; None for the layout NZ."""
    if cache.dim() == 3:
        heads, block, size = page_shape(cache, heads)
        return cache.unflatten(2, (heads, size)).transpose(1, 2)
    return cache if cache.dim() == 4 else None


def gather(cache: torch.Tensor, ids: torch.Tensor, heads: int) -> torch.Tensor:
    """The pages of a batch, (B, N, S, D) with S the longest length in whole blocks."""
    heads, block, size = page_shape(cache, heads)
    pages = cache[ids]  # (B, blocks, *page)
    batch, count = ids.shape
    if cache.dim() == 3:
        return pages.reshape(batch, count * block, heads, size).transpose(1, 2)
    if cache.dim() == 5:
        pages = pages.movedim(3, 4).flatten(4)  # (B, blocks, N, block, D)
    return pages.movedim(2, 1).reshape(batch, heads, count * block, size)


def gather_scales(scales: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Per-token scales in pages, (blocks, block) or (blocks, N, block), as (B, 1 or N, S, 1)."""
    paged = scales.unsqueeze(1) if scales.dim() == 2 else scales
    return gather(paged.unsqueeze(-1), ids, paged.shape[1])
