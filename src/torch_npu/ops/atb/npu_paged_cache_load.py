"""npu_paged_cache_load: the tokens of sequences out of paged caches."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops._shared._pages import read

_ARGUMENTS = (
    "Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor context_lens, *, "
    "Tensor? seq_starts=None, bool cumsum=False"
)


@npu_op(
    f"atb::npu_paged_cache_load({_ARGUMENTS}) -> (Tensor, Tensor)",
    out=f"npu_paged_cache_load.out({_ARGUMENTS}, Tensor(a!) key, Tensor(b!) value) "
    "-> (Tensor(a!), Tensor(b!))",
    ge="PagedCacheLoad",
)
def npu_paged_cache_load(key_cache, value_cache, block_table, context_lens, seq_starts, cumsum):
    """The tokens of each sequence out of its pages, one sequence after the other.

    Token j of sequence b stands in page `block_table[b, seq_starts[b] // block + j // block]` at place j % block.

    Args:
        key_cache: (blocks, block, N, D), float16, bfloat16 or int8.
        value_cache: (blocks, block, N, Dv).
        block_table: (batch, pages), int32.
        context_lens: int32; (batch,) lengths, or with `cumsum` (batch + 1,) sums that begin with 0.
        seq_starts: (batch,), int32, the token with which each sequence begins; its whole page is taken.
        cumsum: whether `context_lens` holds sums.

    Returns:
        key (tokens, N, D) and value (tokens, N, Dv).

    Constraints: N * D and N * Dv fill a multiple of 32 bytes.
    """
    lengths = context_lens.tolist()
    total = (lengths[-1] if lengths else 0) if cumsum else sum(lengths)
    starts = None if seq_starts is None else seq_starts.tolist()
    made = []
    for cache in (key_cache, value_cache):
        rows = cache.new_zeros((total, *cache.shape[2:]))
        read(rows, cache, block_table, lengths, cumsum, starts, nz=False)
        made.append(rows)
    return tuple(made)


@npu_paged_cache_load.meta
def _(key_cache, value_cache):
    total = torch.library.get_ctx().new_dynamic_size()
    return tuple(c.new_empty((total, *c.shape[2:])) for c in (key_cache, value_cache))


@npu_paged_cache_load.check
def _(key_cache, value_cache, block_table, context_lens, seq_starts, cumsum):
    rules.family("key_cache", "A2", "A3")
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        must.dtype(name, cache, *rules.FLOATS, torch.int8)
        must.ndim(name, cache, 4)
        size = cache.shape[2] * cache.shape[3] * cache.element_size()
        must.hold(size % 32 == 0, name, "of tokens that fill a multiple of 32 bytes", size)
    must.same_dtype("value_cache", value_cache, "key_cache", key_cache)
    must.shape("value_cache", value_cache, (*key_cache.shape[:3], None))
    must.dtype("block_table", block_table, torch.int32)
    must.ndim("block_table", block_table, 2)
    batch = block_table.shape[0]
    must.dtype("context_lens", context_lens, torch.int32)
    must.shape("context_lens", context_lens, (batch + 1 if cumsum else batch,))
    must.dtype("seq_starts", seq_starts, torch.int32)
    must.shape("seq_starts", seq_starts, (batch,))
    known = rules.lengths("context_lens", context_lens)
    if known is not None and cumsum:
        steps = [b - a for a, b in zip(known, known[1:], strict=False)]
        fine = known[:1] == [0] and min(steps, default=0) >= 0
        must.hold(fine, "context_lens", "sums of lengths that begin with 0", known)
    if must.has_data(seq_starts) and batch:
        least = int(seq_starts.min())
        must.hold(least >= 0, "seq_starts", "of tokens from 0 on", least)


npu_paged_cache_load.samples = [
    Sample(
        lambda make: (
            make(6, 4, 2, 16, dtype=torch.float16),
            make(6, 4, 2, 32, dtype=torch.float16),
            make(2, 3, dtype=torch.int32, low=0, high=6),
            make(2, dtype=torch.int32, low=3, high=7),
        )
    ),
    Sample(
        lambda make: (
            make(6, 4, 1, 32, dtype=torch.int8, low=-9, high=9),
            make(6, 4, 1, 64, dtype=torch.int8, low=-9, high=9),
            make(2, 3, dtype=torch.int32, low=0, high=6),
            make(3, dtype=torch.int32, low=3, high=4).cumsum(0).int() - 3,
        ),
        lambda make: {
            "seq_starts": make(2, dtype=torch.int32, low=4, high=8),
            "cumsum": True,
        },
    ),
]
