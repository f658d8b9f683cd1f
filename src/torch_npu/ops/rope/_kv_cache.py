"""Writing tokens into key/value caches, in the layouts that the fused rope operators know.

| cache_mode | cache | index |
|---|---|---|
| Norm | (B, 1, length, D) | (B, S): the position in each batch |
| PA, PA_BNSD | (blocks, block, 1, D) | (B * S,): the position in all blocks |
| PA_NZ | the same shape, stored as (blocks, D / d0, block, d0) | (B * S,) |
| PA_BLK_BNSD | (blocks, block, 1, D) | (B * ceil(S / block),): where each block's page starts |
| PA_BLK_NZ | the same shape, stored as (blocks, D / d0, block, d0) | (B * ceil(S / block),) |

d0 fills 32 bytes: 16 elements of a half type, 32 of an 8-bit one. A negative index skips its token
(or, in the BLK modes, its block).
"""

from __future__ import annotations

import torch

from torch_npu.ops._shared import _formats

MODES = ("Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ")


def blocks_of(length: int, block: int) -> int:
    """How many blocks a sequence takes."""
    return -(-length // block)


def quantize(
    x: torch.Tensor,
    scale: torch.Tensor | None,
    dtype: torch.dtype,
    offset: torch.Tensor | None = None,
    name: str = "",
) -> torch.Tensor:
    """x * scale + offset rounded to the cache's dtype, saturating; without a scale x rounded to it.

    `name` is the format that the dtype cannot say, hifloat8.
    """
    if scale is not None:
        x = x * scale
    if offset is not None:
        x = x + offset
    if name == "hifloat8":
        return _formats.encode(x, name).view(dtype)
    if dtype == torch.int8:
        return x.round().clamp(-128, 127).to(dtype)
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        top = torch.finfo(dtype).max
        return x.clamp(-top, top).to(dtype)
    return x.to(dtype)


def write_tokens(cache: torch.Tensor, index: torch.Tensor, rows: torch.Tensor, mode: str) -> None:
    """Writes rows (B, 1, S, D), already in the cache's dtype, to where `index` says, in place."""
    batch, _, length, size = rows.shape
    if rows.numel() == 0:
        return
    rows, index = rows.reshape(batch * length, size), index.reshape(-1)
    if cache.element_size() == 1:  # indexing knows int8, not the 8-bit floats
        cache, rows = cache.view(torch.int8), rows.view(torch.int8)
    if mode == "Norm":
        slot = index
        page = torch.arange(batch, device=cache.device).repeat_interleave(length)
        _put(cache.select(1, 0), page, slot, rows, slot >= 0)
        return
    block = cache.shape[1]
    if "BLK" in mode:
        token = torch.arange(length, device=cache.device)
        offset = index.reshape(batch, -1)[:, token // block].reshape(-1)
        slot = (token % block).repeat(batch)
    else:
        offset = index
        slot = offset.remainder(block)
    page = offset.div(block, rounding_mode="floor")
    if mode.endswith("NZ"):
        d0 = 32 // cache.element_size()
        tiles = cache.view(cache.shape[0], size // d0, block, d0)
        _put(tiles.transpose(1, 2), page, slot, rows.view(-1, size // d0, d0), offset >= 0)
    else:
        _put(cache.select(2, 0), page, slot, rows, offset >= 0)


def _put(
    cache: torch.Tensor,
    page: torch.Tensor,
    slot: torch.Tensor,
    rows: torch.Tensor,
    valid: torch.Tensor,
) -> None:
    """cache[page, slot] = rows where valid, without shapes that depend on data.

    A skipped token repeats the write of the first valid one; with none valid, all of them write
    back what stands at the first place.
    """
    first = valid.int().argmax().view(1)
    page = torch.where(valid, page, page.index_select(0, first).clamp(min=0))
    slot = torch.where(valid, slot, slot.index_select(0, first).clamp(min=0))
    present = cache[page.index_select(0, first), slot.index_select(0, first)]
    repeated = torch.where(valid.any(), rows.index_select(0, first), present)
    mask = valid.view(-1, *(1 for _ in rows.shape[1:]))
    values = torch.where(mask, rows, repeated)
    cache[page, slot] = values.index_select(0, _last_of_each(page * cache.shape[1] + slot))


def _last_of_each(place: torch.Tensor) -> torch.Tensor:
    """For each token the last one with its place: rows that meet are all the last one, whoever writes first."""
    ordered, order = place.sort(stable=True)
    count = torch.arange(place.numel(), device=place.device)
    ends = torch.cat([ordered[1:] != ordered[:-1], ordered.new_ones(1, dtype=torch.bool)])
    last = torch.where(ends, count, place.numel()).flip(0).cummin(0).values.flip(0)
    return torch.empty_like(order).index_copy_(0, order, order.index_select(0, last))
