"""Paged decode attention: each query token is a sequence of its own, over the pages of its row of the block table."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb._attend import Engine, Paged, Rows, attend, by_heads, integers, pages_of


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
    rows = by_heads(query, num_heads)
    target = by_heads(out, num_heads)
    key = pages_of(key_cache, num_kv_heads, rows.shape[2])
    value = pages_of(value_cache, num_kv_heads, target.shape[2])
    sequences = [
        Rows(i, 1, length, bias=None if mask is None else _bias(mask, i, length))
        for i, length in enumerate(integers(context_lens))
    ]
    made = target.new_zeros(target.shape)
    attend(engine, rows, Paged(key, value, block_table), made, sequences, scale_value)
    count = len(sequences)
    out[:count] = made[:count].reshape(count, *out.shape[1:])


def _bias(mask: torch.Tensor, index: int, length: int) -> torch.Tensor:
    """(B, N, 1, S) or (N, 1, S): what is added to the scores of one token."""
    return (mask[index] if mask.dim() == 4 else mask)[..., :length]


def check(
    query, key_cache, value_cache, num_kv_heads, num_heads, block_table, context_lens, out, name
):
    """What all paged decode attentions ask; `value_cache` is None where values are part of the keys."""
    rules.heads(num_heads, num_kv_heads, ("num_heads", "num_kv_heads"))
    rules.tokens("query", query, num_heads)
    rules.tokens("out", out, num_heads)
    must.hold(
        out.shape[0] == query.shape[0],
        "out",
        f"of {query.shape[0]} tokens, as 'query'",
        out.shape[0],
    )
    size = query.shape[-1] // (num_heads if query.dim() == 2 else 1)
    rules.cache("key_cache", key_cache, num_kv_heads, size)
    if value_cache is not None:
        wide = out.shape[-1] // (num_heads if out.dim() == 2 else 1)
        rules.cache("value_cache", value_cache, num_kv_heads, wide)
    known = rules.lengths(name, context_lens)
    count = context_lens.shape[0] if isinstance(context_lens, torch.Tensor) else len(context_lens)
    rules.table(block_table, count)
    must.hold(count <= query.shape[0], name, f"of at most {query.shape[0]} sequences", count)
    if known is not None:
        nz = key_cache.dim() == 4 and tuple(key_cache.shape[2:]) != (num_kv_heads, size)
        block = key_cache.shape[2 if nz else 1]
        most = block_table.shape[1] * block
        longest = max(known, default=0)
        must.hold(longest <= most, name, f"of lengths up to {most}, the block table's", longest)
