"""npu_scatter_pa_kv_cache and its functional form: keys and values of tokens into caches of pages."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._pages import contiguous, nz_width, write, write_native

MODES = ("Norm", "PA_NZ")

#: aclnnScatterPaKvCache by product: the tiling of A2 and A3 takes three dtypes, Ascend950 all that its page lists
SERVER_DTYPES = (torch.float16, torch.bfloat16, torch.int8)
ALL_DTYPES = (
    *SERVER_DTYPES,
    torch.float32,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
)


@npu_op(
    "npu_scatter_pa_kv_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping, *, Tensor? compress_lens=None, Tensor? compress_seq_offsets=None, "
    "Tensor? seq_lens=None, str? cache_mode='PA_NZ') -> ()",
    functional="npu_scatter_pa_kv_cache_functional(Tensor key, Tensor value, Tensor key_cache, "
    "Tensor value_cache, Tensor slot_mapping, *, Tensor? compress_lens=None, "
    "Tensor? compress_seq_offsets=None, Tensor? seq_lens=None, str? cache_mode='PA_NZ') "
    "-> (Tensor, Tensor)",
)
def npu_scatter_pa_kv_cache(
    key,
    value,
    key_cache,
    value_cache,
    slot_mapping,
    compress_lens,
    compress_seq_offsets,
    seq_lens,
    cache_mode,
):
    """Writes the keys and values of tokens into the slots of paged caches, in place.

    | key, value | cache_mode | caches | slot_mapping |
    |---|---|---|---|
    | (T, N, D) | Norm or None | (blocks, block, N, D) | (T,) |
    | (T, N, D) | PA_NZ | (blocks, N * D / c, block, c) or (blocks, N, D / c, block, c) | (T,) |
    | (B, S, N, D), Ascend950 | Norm or None | (blocks, block, 1, D) | (B, N) |

    Slot s is token s % block of page s // block. A negative slot is skipped. c elements fill 32 bytes.

    In the last form each head has slots of its own from `slot_mapping[b, n]` on. Without `compress_seq_offsets` they
    receive the last `compress_lens` tokens of the first `seq_lens[b]`; with it the tokens before the offset, the mean
    of the next `compress_lens` ones, and the remaining ones.

    Args:
        key: float16, bfloat16 or int8; on Ascend950 also float32, 8, 16 and 32-bit integers and the 8-bit floats.
        value: like `key` in all sizes but the last, which may differ.
        key_cache: the dtype of `key`, written.
        value_cache: the dtype of `value`, written.
        slot_mapping: int32 or int64, below blocks * block; where a slot occurs twice one of the tokens stays.
        compress_lens: (B, N) or (B * N,), the dtype of `slot_mapping`; needed with 4-dimensional `key`.
        compress_seq_offsets: (B * N,), the dtype of `slot_mapping`.
        seq_lens: (B,), the dtype of `slot_mapping`; needed with 4-dimensional `key`.
        cache_mode: 'PA_NZ', 'Norm' or None.

    Returns:
        Nothing; `npu_scatter_pa_kv_cache_functional` returns updated copies of the caches.

    Differs from upstream: after a mean, the remaining tokens are those that follow the averaged ones, as upstream's
    formula says; its kernel for Ascend950 reads them from the first token on.
    """
    nz = cache_mode == "PA_NZ"
    for rows, cache in ((key, key_cache), (value, value_cache)):
        if rows.dim() == 3:
            write(cache, slot_mapping, rows, nz)
        else:
            compressed(cache, slot_mapping, rows, compress_lens, compress_seq_offsets, seq_lens)


@npu_scatter_pa_kv_cache.native
def _(key, value, key_cache, value_cache, slot_mapping, cache_mode):
    if key.dim() != 3 or not contiguous(key_cache, value_cache):
        return NotImplemented
    write_native(key_cache, slot_mapping, key, cache_mode == "PA_NZ", value_cache, value)
    return None


def compressed(cache, slot_mapping, rows, compress_lens, compress_seq_offsets, seq_lens):
    """One head at a time: (B, S, N, D) into the slots from `slot_mapping[b, n]` on of (blocks, block, 1, D)."""
    batch, length, heads, _ = rows.shape
    starts = slot_mapping.reshape(batch, heads).tolist()
    sizes = compress_lens.reshape(batch, heads).tolist()
    offsets = None
    if compress_seq_offsets is not None:
        offsets = compress_seq_offsets.reshape(batch, heads).tolist()
    slots = cache.shape[0] * cache.shape[1]
    for b, end in enumerate(seq_lens.tolist()):
        end = min(end, length)
        for n in range(heads):
            tokens = rows[b, :, n]
            if offsets is None:
                kept = tokens[max(0, end - sizes[b][n]) : end]
            else:
                kept = _averaged(tokens[:end], offsets[b][n], sizes[b][n])
            slot = torch.arange(starts[b][n], starts[b][n] + kept.shape[0])
            inside = (slot >= 0) & (slot < slots)
            write(cache, slot[inside], kept[inside])


def _averaged(tokens, offset, size):
    window = tokens[offset : offset + size]
    if window.shape[0] == 0:
        return torch.cat((tokens[:offset], tokens[offset + size :]))
    if tokens.is_floating_point():
        mean = wide(window).mean(0, keepdim=True).to(tokens.dtype)
    else:
        mean = (window.long().sum(0, keepdim=True) // window.shape[0]).to(tokens.dtype)
    return torch.cat((tokens[:offset], mean, tokens[offset + size :]))


def check_family(argument, *families):
    """The operator exists on the chip."""
    chip = chips.current()
    expected = f"on a chip of series {must.one_of(families)}"
    received = f"a tensor on {chip.name} ({chip.family})"
    must.hold(chip.family in families, argument, expected, received, ErrCode.NOT_SUPPORT)


def check_tokens(name, rows, cache, slot_mapping, nz):
    """A 3-dimensional argument, its cache and the slots fit together."""
    must.ndim(name, rows, 3)
    tokens, heads, size = rows.shape
    if not nz:
        must.shape(f"{name}_cache", cache, (None, None, heads, size))
    else:
        c = nz_width(cache)
        must.hold(size % c == 0, name, f"of a last dimension divisible by {c} in mode PA_NZ", size)
        must.ndim(f"{name}_cache", cache, 4, 5)
        shape = (heads * size // c,) if cache.dim() == 4 else (heads, size // c)
        must.shape(f"{name}_cache", cache, (None, *shape, None, c))
    must.shape("slot_mapping", slot_mapping, (tokens,))
    slots = cache.shape[0] * (cache.shape[-2] if nz else cache.shape[1])
    if must.has_data(slot_mapping) and slot_mapping.numel():
        most = int(slot_mapping.max())
        must.hold(most < slots, "slot_mapping", f"below {slots}, the slots of '{name}_cache'", most)


def check_compressed(name, rows, cache, slot_mapping, compress_lens, offsets, seq_lens):
    """A 4-dimensional argument with the three tensors that say what is kept of it."""
    must.ndim(name, rows, 4)
    batch, _, heads, size = rows.shape
    must.shape(f"{name}_cache", cache, (None, None, 1, size))
    must.shape("slot_mapping", slot_mapping, (batch, heads))
    when = f"with 4-dimensional '{name}'"
    must.present("compress_lens", compress_lens, when)
    must.present("seq_lens", seq_lens, when)
    must.ndim("compress_lens", compress_lens, 1, 2)
    flat = (batch * heads,)
    must.shape("compress_lens", compress_lens, flat if compress_lens.dim() == 1 else (batch, heads))
    must.shape("compress_seq_offsets", offsets, flat)
    must.shape("seq_lens", seq_lens, (batch,))


@npu_scatter_pa_kv_cache.check
def _(
    key,
    value,
    key_cache,
    value_cache,
    slot_mapping,
    compress_lens,
    compress_seq_offsets,
    seq_lens,
    cache_mode,
):
    check_family("key", "A2", "A3", "A5")
    dtypes = ALL_DTYPES if chips.current().family == "A5" else SERVER_DTYPES
    must.choice("cache_mode", cache_mode, (*MODES, None))
    must.dtype("key", key, *dtypes)
    must.dtype("value", value, *dtypes)
    must.same_dtype("key_cache", key_cache, "key", key)
    must.same_dtype("value_cache", value_cache, "value", value)
    if value.dtype == torch.int8:
        must.same_dtype("key", key, "value", value)
    must.dtype("slot_mapping", slot_mapping, torch.int32, torch.int64)
    named = {
        "compress_lens": compress_lens,
        "compress_seq_offsets": compress_seq_offsets,
        "seq_lens": seq_lens,
    }
    for name, tensor in named.items():
        must.same_dtype(name, tensor, "slot_mapping", slot_mapping)
    must.ndim("key", key, 3, 4)
    must.shape("value", value, (*key.shape[:-1], None))
    nz = cache_mode == "PA_NZ"
    if key.dim() == 4:
        must.hold(not nz, "cache_mode", "'Norm' or None with 4-dimensional 'key'", cache_mode)
    for name, rows, cache in (("key", key, key_cache), ("value", value, value_cache)):
        if key.dim() == 3:
            check_tokens(name, rows, cache, slot_mapping, nz)
        else:
            check_family(name, "A5")
            check_compressed(name, rows, cache, slot_mapping, *named.values())


@npu_scatter_pa_kv_cache.meta
def _():
    return None


def _slots(make, tokens, slots):
    return make(slots).argsort()[:tokens].int()


npu_scatter_pa_kv_cache.samples = [
    Sample(
        lambda make: (
            make(5, 2, 16, dtype=torch.bfloat16),
            make(5, 2, 32, dtype=torch.bfloat16),
            make(3, 4, 2, 16, dtype=torch.bfloat16),
            make(3, 4, 2, 32, dtype=torch.bfloat16),
            _slots(make, 5, 12),
        ),
        {"cache_mode": "Norm"},
    ),
    Sample(
        lambda make: (
            make(5, 2, 32, dtype=torch.float16),
            make(5, 2, 16, dtype=torch.float16),
            make(3, 4, 4, 16, dtype=torch.float16),
            make(3, 2, 4, 16, dtype=torch.float16),
            _slots(make, 5, 12) - 3,
        )
    ),
    Sample(
        lambda make: (
            make(2, 1, 64, dtype=torch.int8, low=-9, high=9),
            make(2, 1, 32, dtype=torch.bfloat16),
            make(2, 1, 2, 16, 32, dtype=torch.int8, low=-9, high=9),
            make(2, 1, 2, 16, 16, dtype=torch.bfloat16),
            _slots(make, 2, 32).long(),
        )
    ),
]
