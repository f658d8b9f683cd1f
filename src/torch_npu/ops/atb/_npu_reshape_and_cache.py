"""_npu_reshape_and_cache and _npu_reshape_and_cache_siso: tokens into the slots of paged caches."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops._shared._pages import contiguous, nz_width, write, write_native


def _nz(rows, cache):
    """(tokens, N, D) in (blocks, block, N, D) are plain; (blocks, N * D / c, block, c) is NZ."""
    return tuple(cache.shape[2:]) != tuple(rows.shape[1:])


def _check(name, rows, cache_name, cache, slot_indices):
    must.dtype(name, rows, *rules.FLOATS, torch.int8)
    must.same_dtype(cache_name, cache, name, rows)
    must.ndim(name, rows, 3)
    must.ndim(cache_name, cache, 4)
    rules.written(cache_name, cache)
    tokens, heads, size = rows.shape
    nz = _nz(rows, cache)
    if nz:
        c = 16 if chips.current().family in rules.NZ_ALONE else nz_width(cache)
        fits = cache.shape[3] == c and cache.shape[1] * c == heads * size
        expected = f"of shape (*, *, {heads}, {size}) or (*, {heads * size // c}, *, {c})"
        must.hold(fits, cache_name, expected, tuple(cache.shape))
    block = cache.shape[2 if nz else 1]
    if nz or chips.current().family in rules.NZ_ALONE:
        must.hold(nz, cache_name, "in NZ on 310P and 910A", tuple(cache.shape))
        expected = "of a multiple of 16 tokens a block in NZ"
        must.hold(block % 16 == 0, cache_name, expected, block)
    must.dtype("slot_indices", slot_indices, torch.int32)
    must.shape("slot_indices", slot_indices, (tokens,))
    slots = cache.shape[0] * block
    if must.has_data(slot_indices) and tokens:
        most = int(slot_indices.max())
        must.hold(most < slots, "slot_indices", f"below {slots}, the slots of '{cache_name}'", most)


@npu_op(
    "atb::_npu_reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, Tensor slot_indices) -> ()",
    ge="ReshapeAndCache",
)
def _npu_reshape_and_cache(key, value, key_cache, value_cache, slot_indices):
    """Writes the keys and values of tokens into the slots of paged caches, in place.

    Slot s is token s % block of page s // block; a negative slot is skipped.

    Args:
        key: (tokens, N, D), float16, bfloat16 or int8.
        value: (tokens, N, Dv), the dtype of `key` but in NZ; D on 310P and 910A.
        key_cache: (blocks, block, N, D), or (blocks, N * D / c, block, c) in NZ with c elements in 32 bytes (16 on
            310P and 910A, which have NZ alone); written.
        value_cache: the same for `value`, written.
        slot_indices: (tokens,), int32.

    Returns:
        Nothing.
    """
    write(key_cache, slot_indices, key, _nz(key, key_cache))
    write(value_cache, slot_indices, value, _nz(value, value_cache))


@_npu_reshape_and_cache.native
def _(key, value, key_cache, value_cache, slot_indices):
    nz = _nz(key, key_cache)
    if nz != _nz(value, value_cache) or not contiguous(key_cache, value_cache):
        return NotImplemented
    write_native(key_cache, slot_indices, key, nz, value_cache, value)
    return None


@_npu_reshape_and_cache.check
def _(key, value, key_cache, value_cache, slot_indices):
    rules.family("key", "A2", "A3", "A5", "310P", "910A")
    _check("key", key, "key_cache", key_cache, slot_indices)
    _check("value", value, "value_cache", value_cache, slot_indices)
    # heads of keys and values may have sizes of their own but on 310P and 910A
    size = key.shape[2] if chips.current().family in rules.NZ_ALONE else None
    must.shape("value", value, (*key.shape[:2], size))
    nz = _nz(key, key_cache)
    if nz:
        same = (key_cache.shape[0], key_cache.shape[2]) == (
            value_cache.shape[0],
            value_cache.shape[2],
        )
    else:
        must.same_dtype("value", value, "key", key)
        same = key_cache.shape[:2] == value_cache.shape[:2]
    expected = f"of the blocks of 'key_cache' ({tuple(key_cache.shape)})"
    must.hold(
        same and _nz(value, value_cache) == nz, "value_cache", expected, tuple(value_cache.shape)
    )


@_npu_reshape_and_cache.meta
def _():
    return None


_npu_reshape_and_cache.samples = [
    Sample(
        lambda make: (
            make(5, 2, 16, dtype=torch.float16),
            make(5, 2, 32, dtype=torch.float16),
            make(3, 4, 2, 16, dtype=torch.float16),
            make(3, 4, 2, 32, dtype=torch.float16),
            make(12).argsort()[:5].int(),
        )
    ),
    Sample(
        lambda make: (
            make(5, 2, 32, dtype=torch.float16),
            make(5, 2, 32, dtype=torch.float16),
            make(3, 4, 16, 16, dtype=torch.float16),
            make(3, 4, 16, 16, dtype=torch.float16),
            make(24).argsort()[:5].int() - 2,
        )
    ),
]


@npu_op(
    "atb::_npu_reshape_and_cache_siso(Tensor key, Tensor(a!) key_cache, Tensor slot_indices) -> ()",
    ge="ReshapeAndCache",
)
def _npu_reshape_and_cache_siso(key, key_cache, slot_indices):
    """Writes the keys of tokens into the slots of a paged cache, in place: `_npu_reshape_and_cache` without values.

    Args:
        key: (tokens, N, D), float16, bfloat16 or int8.
        key_cache: (blocks, block, N, D), written.
        slot_indices: (tokens,), int32; a negative slot is skipped.

    Returns:
        Nothing.
    """
    write(key_cache, slot_indices, key)


@_npu_reshape_and_cache_siso.native
def _(key, key_cache, slot_indices):
    if not contiguous(key_cache):
        return NotImplemented
    write_native(key_cache, slot_indices, key, False)
    return None


@_npu_reshape_and_cache_siso.check
def _(key, key_cache, slot_indices):
    rules.family("key", "A2", "A3", "A5")
    must.ndim("key", key, 3)
    must.shape("key_cache", key_cache, (None, None, *key.shape[1:]))
    _check("key", key, "key_cache", key_cache, slot_indices)


@_npu_reshape_and_cache_siso.meta
def _():
    return None


_npu_reshape_and_cache_siso.samples = [
    Sample(
        lambda make: (
            make(5, 1, 24, dtype=torch.bfloat16),
            make(3, 4, 1, 24, dtype=torch.bfloat16),
            make(12).argsort()[:5].int(),
        )
    ),
]
