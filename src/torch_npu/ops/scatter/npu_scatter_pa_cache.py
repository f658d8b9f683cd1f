"""npu_scatter_pa_cache: the keys of tokens into a cache of pages, on Ascend950."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._pages import write
from torch_npu.ops.scatter.npu_scatter_pa_kv_cache import (
    ALL_DTYPES,
    check_compressed,
    check_tokens,
    compressed,
)


@npu_op(
    "npu_scatter_pa_cache.value(Tensor key, Tensor slot_mapping, *, Tensor? compress_lens=None, "
    "Tensor? compress_seq_offsets=None, Tensor? seq_lens=None, Tensor(a!) key_cache) -> Tensor(a!)",
)
def npu_scatter_pa_cache(
    key, slot_mapping, compress_lens, compress_seq_offsets, seq_lens, key_cache
):
    """Writes the keys of tokens into the slots of a paged cache, in place; the half of `npu_scatter_pa_kv_cache`.

    Args:
        key: (T, N, D), or (B, S, N, D) with one slot range a head; float16, bfloat16, float32, 8, 16 or 32-bit
            integers, or an 8-bit float (3 dimensions only).
        slot_mapping: int32 or int64; (T,), or (B, N) for the first slot of each head. A negative slot is skipped.
        compress_lens: (B, N) with `compress_seq_offsets`, else (B * N,); needed with 4-dimensional `key`.
        compress_seq_offsets: (B * N,), where the averaged tokens begin.
        seq_lens: (B,); needed with 4-dimensional `key`.
        key_cache: (blocks, block, N, D), or (blocks, block, 1, D) with 4-dimensional `key`; the dtype of `key`,
            written.

    Returns:
        `key_cache`.

    Differs from upstream: upstream has it on Ascend950 alone. The remaining tokens after a mean are those that follow the averaged ones, as upstream's
    formula says.
    """
    if key.dim() == 3:
        write(key_cache, slot_mapping, key)
    else:
        compressed(key_cache, slot_mapping, key, compress_lens, compress_seq_offsets, seq_lens)
    return key_cache


@npu_scatter_pa_cache.check
def _(key, slot_mapping, compress_lens, compress_seq_offsets, seq_lens, key_cache):
    must.dtype("key", key, *ALL_DTYPES)
    must.same_dtype("key_cache", key_cache, "key", key)
    must.dtype("slot_mapping", slot_mapping, torch.int32, torch.int64)
    must.same_dtype("compress_lens", compress_lens, "slot_mapping", slot_mapping)
    must.same_dtype("compress_seq_offsets", compress_seq_offsets, "slot_mapping", slot_mapping)
    must.same_dtype("seq_lens", seq_lens, "slot_mapping", slot_mapping)
    must.ndim("key", key, 3, 4)
    if key.dim() == 3:
        check_tokens("key", key, key_cache, slot_mapping, nz=False)
    else:
        arguments = (compress_lens, compress_seq_offsets, seq_lens)
        check_compressed("key", key, key_cache, slot_mapping, *arguments)


@npu_scatter_pa_cache.meta
def _(key_cache):
    return key_cache


npu_scatter_pa_cache.samples = [
    Sample(
        lambda make: (make(5, 2, 16), make(12).argsort()[:5].int()),
        lambda make: {"key_cache": make(3, 4, 2, 16)},
    ),
]
