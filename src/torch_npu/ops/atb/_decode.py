"""Paged decode attention: each query token is a sequence of its own, over the pages of its row of the block table."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb._attend import Engine, Paged, Rows, attend, integers, pages_of


def decode(
    engine: Engine,
    query,
    key_cache,
    value_cache,
    num_kv_heads,
    num_heads,
    scale_value,
    block_table,
    context_lens,
    out,
    mask=None,
) -> None:
    """Token i of `query` attends to the first context_lens[i] tokens of its pages; `mask` is added to its scores."""
    kv_heads = num_kv_heads or num_heads
    key = pages_of(key_cache, kv_heads, query.shape[2])
    value = pages_of(value_cache, kv_heads, out.shape[2])
    sequences = [
        Rows(i, 1, length, bias=None if mask is None else _bias(mask, i, length))
        for i, length in enumerate(integers(context_lens))
    ]
    made = out.new_zeros(out.shape)
    attend(engine, query, Paged(key, value, block_table), made, sequences, scale_value)
    out[: len(sequences)] = made[: len(sequences)]


def _bias(mask: torch.Tensor, index: int, length: int) -> torch.Tensor:
    """(B, N, rows, S) or (N, rows, S): its first row is added to the scores of one token."""
    return (mask[index] if mask.dim() == 4 else mask)[..., :1, :length]


#: the largest head of a kernel whose keys and values have one size, and the largest page of such a head
_HEAD, _PAGE = 256, 128 * 128
#: the largest head of the others; beyond _HEAD a page holds 128 tokens at most
_WIDE, _BLOCK = 576, 128


def check(
    query,
    key_cache,
    value_cache,
    num_kv_heads,
    num_heads,
    block_table,
    context_lens,
    out,
    name,
    one_size=False,
):
    """What all paged attentions ask; `value_cache` is None where values are part of the keys.

    `one_size` names the kernels whose keys and values have heads of one size.
    """
    rules.heads(num_heads, num_kv_heads, ("num_heads", "num_kv_heads"))
    must.shape("query", query, (None, num_heads, None))
    must.shape("out", out, (query.shape[0], num_heads, None))
    rules.written("out", out)
    kv_heads = num_kv_heads or num_heads
    if chips.current().family in rules.NZ_ALONE:
        block = _check_nz(query, key_cache, value_cache, kv_heads)
        must.shape("out", out, tuple(query.shape))
    else:
        block = _check_plain(query, key_cache, value_cache, kv_heads, out, one_size)
    known = rules.lengths(name, context_lens)
    count = context_lens.shape[0] if isinstance(context_lens, torch.Tensor) else len(context_lens)
    rules.table(block_table, count)
    must.hold(count <= query.shape[0], name, f"of at most {query.shape[0]} sequences", count)
    if known is not None:
        most = block_table.shape[1] * block
        longest = max(known, default=0)
        must.hold(longest <= most, name, f"of lengths up to {most}, the block table's", longest)


def _check_nz(query, key_cache, value_cache, kv_heads) -> int:
    """Caches (blocks, N * D / 16, block, 16), as the Atlas inference series has them; the tokens of a page."""
    must.dtype("query", query, torch.float16)
    size = query.shape[2]
    must.shape("key_cache", key_cache, (None, kv_heads * size // 16, None, 16))
    must.shape("value_cache", value_cache, tuple(key_cache.shape))
    block = key_cache.shape[2]
    must.hold(size % 16 == 0, "query", "of a head size that is a multiple of 16", size)
    _check_page(query, block)
    return block


def _check_page(query, block) -> None:
    size = query.shape[2]
    fits = size <= _HEAD and size * block <= _PAGE
    expected = f"of a head size up to {_HEAD}, that times the block ({block}) up to {_PAGE}"
    must.hold(fits, "query", expected, size)


def _check_plain(query, key_cache, value_cache, kv_heads, out, one_size) -> int:
    """Caches (blocks, block, N, D); the tokens of a page."""
    size, wide = query.shape[2], out.shape[2]
    must.shape("key_cache", key_cache, (None, None, kv_heads, size))
    block = key_cache.shape[1]
    if value_cache is not None:
        must.shape("value_cache", value_cache, (*key_cache.shape[:3], wide))
    if one_size or chips.current().family == "A5":
        must.hold(wide == size, "out", f"of head size {size}, as 'query'", wide)
    if one_size:
        _check_page(query, block)
    most = max(size, wide)
    must.hold(most <= _WIDE, "query", f"of head sizes up to {_WIDE}", most)
    latent = value_cache is None and block == 256 and query.shape[1] in (16, 32)
    fits = most <= _HEAD or block <= _BLOCK or (latent and (size, wide) == (576, 512))
    expected = f"of at most {_BLOCK} tokens a block beside heads beyond {_HEAD}"
    must.hold(fits, "key_cache", expected, block)
    return block
