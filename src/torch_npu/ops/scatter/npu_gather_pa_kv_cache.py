"""npu_gather_pa_kv_cache and its functional form: the tokens of sequences out of caches of pages."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._pages import contiguous, nz_width, read, read_native, spans
from torch_npu.ops.scatter.npu_scatter_pa_kv_cache import ALL_DTYPES, SERVER_DTYPES, check_family


@npu_op(
    "npu_gather_pa_kv_cache(Tensor key_cache, Tensor value_cache, Tensor block_tables, Tensor seq_lens, "
    "Tensor(a!) key, Tensor(b!) value, *, Tensor? seq_offset=None, bool is_seq_lens_cumsum=False) -> ()",
    functional="npu_gather_pa_kv_cache_functional(Tensor key_cache, Tensor value_cache, "
    "Tensor block_tables, Tensor seq_lens, Tensor key, Tensor value, *, Tensor? seq_offset=None, "
    "bool is_seq_lens_cumsum=False) -> (Tensor, Tensor)",
)
def npu_gather_pa_kv_cache(
    key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum
):
    """Copies the tokens of each sequence out of its pages, one sequence after the other, into `key` and `value`.

    Token j of sequence b stands in page `block_tables[b, seq_offset[b] // block + j // block]` at place j % block.
    A token whose page is no block of the cache, or lies past the table's end, becomes 0.

    Args:
        key_cache: (blocks, block, N, D), or (blocks, N * D / c, block, c) in the format FRACTAL_NZ, c elements
            filling 32 bytes; float16, bfloat16 or int8, on Ascend950 also float32, 8, 16 and 32-bit integers and the
            8-bit floats.
        value_cache: like `key_cache`, with a head size of its own.
        block_tables: (B, pages), int32; on Ascend950 also int64.
        seq_lens: the dtype of `block_tables`; (B,) lengths, or (B + 1,) sums of lengths that begin with 0.
        key: (tokens, N, D) or (tokens, N * D), the dtype of `key_cache`, written.
        value: like `key`.
        seq_offset: (B,), the token with which each sequence begins; its whole page is taken.
        is_seq_lens_cumsum: whether `seq_lens` holds sums.

    Returns:
        Nothing; `npu_gather_pa_kv_cache_functional` returns updated copies of `key` and `value`.

    Differs from upstream: the layout of a cache follows from its shape and that of `key`, not from the tensor's
    format.
    """
    lengths, starts = seq_lens.tolist(), _starts(seq_offset)
    for target, cache in ((key, key_cache), (value, value_cache)):
        nz = _is_nz(target, cache)
        read(target, cache, block_tables, lengths, is_seq_lens_cumsum, starts, nz)


def _starts(seq_offset):
    return None if seq_offset is None else seq_offset.tolist()


@npu_gather_pa_kv_cache.native
def _(key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum):
    nz = _is_nz(key, key_cache)
    alike = nz == _is_nz(value, value_cache) and key.shape[0] == value.shape[0]
    pages = key_cache.shape[-2 if nz else 1], value_cache.shape[-2 if nz else 1]
    if not alike or pages[0] != pages[1] or not contiguous(key_cache, value_cache, key, value):
        return NotImplemented
    sequences = (seq_lens.tolist(), is_seq_lens_cumsum, _starts(seq_offset))
    read_native(key, key_cache, block_tables, *sequences, nz, value, value_cache)
    return None


def _is_nz(target, cache):
    """(T, N, D) tokens in (blocks, block, N, D) are plain; (T, N * D) in (blocks, N * D / c, block, c) are not."""
    return target.dim() == 2 or cache.shape[2:] != target.shape[1:]


@npu_gather_pa_kv_cache.check
def _(key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, is_seq_lens_cumsum):
    check_family("key_cache", "A2", "A3", "A5")
    new = chips.current().family == "A5"
    must.dtype("key_cache", key_cache, *(ALL_DTYPES if new else SERVER_DTYPES))
    must.dtype("value_cache", value_cache, *(ALL_DTYPES if new else SERVER_DTYPES))
    integers = (torch.int32, torch.int64) if new else (torch.int32,)
    must.dtype("block_tables", block_tables, *integers)
    must.same_dtype("seq_lens", seq_lens, "block_tables", block_tables)
    must.same_dtype("seq_offset", seq_offset, "block_tables", block_tables)
    must.ndim("block_tables", block_tables, 2)
    batch = block_tables.shape[0]
    must.shape("seq_lens", seq_lens, (batch + 1 if is_seq_lens_cumsum else batch,))
    must.shape("seq_offset", seq_offset, (batch,))
    for name, target, cache in (("key", key, key_cache), ("value", value, value_cache)):
        must.same_dtype(name, target, f"{name}_cache", cache)
        must.ndim(f"{name}_cache", cache, 4)
        must.ndim(name, target, 2, 3)
        width = target[0].numel() if target.shape[0] else None
        if _is_nz(target, cache) and width is not None:
            c = nz_width(cache)
            must.hold(
                cache.shape[3] == c and cache.shape[1] * c == width,
                f"{name}_cache",
                f"of shape (*, *, {', '.join(map(str, target.shape[1:]))}) or "
                f"(*, {width // c}, *, {c}) for '{name}' of shape {tuple(target.shape)}",
                tuple(cache.shape),
            )
    must.hold(
        key.shape[0] == value.shape[0],
        "value",
        f"of {key.shape[0]} tokens, as 'key'",
        value.shape[0],
    )
    _check_lengths(seq_lens, key, seq_offset, is_seq_lens_cumsum)


def _check_lengths(seq_lens, key, seq_offset, is_seq_lens_cumsum):
    if must.has_data(seq_lens):
        found = spans(seq_lens.tolist(), is_seq_lens_cumsum)
        least = min((n for _, n in found), default=0)
        must.hold(least >= 0, "seq_lens", "of lengths of at least 0", least)
        end = max((a + n for a, n in found), default=0)
        must.hold(end <= key.shape[0], "seq_lens", f"of at most {key.shape[0]} tokens", end)
    if must.has_data(seq_offset) and seq_offset.numel():
        least = int(seq_offset.min())
        must.hold(least >= 0, "seq_offset", "of tokens from 0 on", least)


@npu_gather_pa_kv_cache.meta
def _():
    return None


npu_gather_pa_kv_cache.samples = [
    Sample(
        lambda make: (
            make(6, 4, 2, 16, dtype=torch.float16),
            make(6, 4, 2, 32, dtype=torch.float16),
            make(2, 3, dtype=torch.int32, low=0, high=6),
            make(2, dtype=torch.int32, low=3, high=4),
            make(6, 2, 16, dtype=torch.float16),
            make(6, 2, 32, dtype=torch.float16),
        )
    ),
    Sample(
        lambda make: (
            make(6, 4, 8, 16, dtype=torch.bfloat16),
            make(6, 2, 8, 16, dtype=torch.bfloat16),
            make(2, 3, dtype=torch.int32, low=0, high=6),
            make(3, dtype=torch.int32, low=0, high=1)
            + make(3, dtype=torch.int32, low=1, high=2).cumsum(0).int() * 5
            - 5,
            make(10, 64, dtype=torch.bfloat16),
            make(10, 32, dtype=torch.bfloat16),
        ),
        lambda make: {
            "seq_offset": make(2, dtype=torch.int32, low=8, high=9),
            "is_seq_lens_cumsum": True,
        },
    ),
]
