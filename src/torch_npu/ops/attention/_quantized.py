"""Quantized attention: int8 and int4 caches back to floats, int8 products, quantized outputs.

The modes of a cache's scales (`key_antiquant_mode`, `key_quant_mode`), and the shapes they come in:

| mode | one scale for | shape |
|---|---|---|
| 0 | a channel | (1, N, 1, D), (1, N, D), (1, H), (N, 1, D), (N, D) or (H,); a tensor: (1,) |
| 1 | a token | (1, B, S) or (B, S) |
| 2 | a head | (N,) |
| 3 | a token and head | (B, N, S) |
| 4 | a token, in pages | (blocks, block_size) |
| 5 | a token and head, in pages | (blocks, N, block_size) |
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu.ops._math import wide
from torch_npu.ops._shared import _packing, _rounding

PER_CHANNEL, PER_TOKEN, PER_HEAD, PER_TOKEN_HEAD, PAGED_TOKEN, PAGED_TOKEN_HEAD = range(6)


def values(cache: torch.Tensor) -> torch.Tensor:
    """The integers of a cache; an int32 carries eight int4."""
    return _packing.unpack_int4(cache) if cache.dtype == torch.int32 else cache


def stretch(scale: torch.Tensor, mode: int, heads: int) -> torch.Tensor:
    """A scale (or offset) of modes 0 to 3 as a tensor that broadcasts over (B, N, S, D)."""
    scale = wide(scale)
    if scale.numel() == 1:
        return scale.reshape(1, 1, 1, 1)
    if mode == PER_CHANNEL:
        return scale.reshape(1, heads, 1, -1)
    if mode == PER_TOKEN:
        return scale.reshape(-1, scale.shape[-1])[:, None, :, None]
    if mode == PER_HEAD:
        return scale.reshape(1, heads, 1, 1)
    return scale.unsqueeze(-1)


def dequantize(
    cache: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None
) -> torch.Tensor:
    """(cache + offset) * scale in fp32; the scale may count more tokens than the cache has."""
    length = cache.shape[2]
    crop = lambda t: t[:, :, :length] if t.shape[2] > 1 else t  # noqa: E731
    raised = cache.float() if offset is None else cache.float() + crop(offset)
    return raised * crop(scale)


def scalar(scale: torch.Tensor) -> float:
    """A per-tensor factor: a float, or a fixpipe word, whose low half holds a float's bits."""
    if scale.dtype in (torch.uint64, torch.int64):
        return scale.reshape(-1)[:1].contiguous().view(torch.float32)[0].item()
    return scale.reshape(-1)[0].item()


def quantize(
    out: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """out * scale + offset, rounded to `dtype`; out is (B, N, S, D), factors 1 or N * D."""
    scaled = out * _channels(scale, out)
    if offset is not None:
        scaled = scaled + _channels(offset, out)
    return _rounding.saturate(scaled, dtype)


def _channels(factor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    factor = wide(factor)
    if factor.numel() == 1:
        return factor.reshape(1, 1, 1, 1)
    return factor.reshape(1, out.shape[1], 1, out.shape[3])


def token_heads(scale: torch.Tensor, layout: str) -> torch.Tensor:
    """The query's scale as (B, N, S, 1): it comes as (B, S, N), (B, N, S) or (T, N)."""
    scale = wide(scale)
    if layout in ("TND", "NTD"):
        scale = scale.unsqueeze(0) if layout == "NTD" else scale.transpose(0, 1).unsqueeze(0)
    elif layout != "BNSD":
        scale = scale.transpose(1, 2)
    return scale.unsqueeze(-1)


def scale_shapes(
    mode: int, batch: int, heads: int, size: int, tokens: int, cache: Sequence[int], block: int
) -> list[tuple[int, ...]]:
    """The documented shapes of a cache's scale, which must cover at least `tokens` tokens."""
    if mode == PER_CHANNEL:
        wide_row = heads * size
        channel = [(heads, 1, size), (heads, size), (wide_row,)]
        return [(1,), *channel, *((1, *shape) for shape in channel)]
    others: dict[int, list[tuple[int, ...]]] = {
        PER_TOKEN: [(1, batch, tokens), (batch, tokens)],
        PER_HEAD: [(heads,)],
        PER_TOKEN_HEAD: [(batch, heads, tokens)],
        PAGED_TOKEN: [(cache[0], block)],
        PAGED_TOKEN_HEAD: [(cache[0], heads, block)],
    }
    return others[mode]
