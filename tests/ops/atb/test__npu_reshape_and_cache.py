"""_npu_reshape_and_cache and its form without values, against loops."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


def written(cache, rows, slots):
    """Token by token into (blocks, block, N, D)."""
    cache, rows = cache.cpu().clone(), rows.cpu()
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            cache[slot // cache.shape[1], slot % cache.shape[1]] = rows[token]
    return cache


def nz(cache):
    return cache.flatten(2).unflatten(2, (-1, 16)).transpose(1, 2).contiguous()


SLOTS = [11, 0, -1, 5, 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_plain_caches(dtype):
    rows = [make(5, 2, size, dtype=dtype, low=-9, high=9) for size in (16, 32)]
    caches = [make(3, 4, 2, size, dtype=dtype, low=-9, high=9, seed=3) for size in (16, 32)]
    slots = torch.tensor(SLOTS, dtype=torch.int32).npu()
    expected = [written(c, r, slots) for c, r in zip(caches, rows, strict=True)]
    assert torch_npu._npu_reshape_and_cache(*rows, *caches, slots) is None
    for cache, right in zip(caches, expected, strict=True):
        assert torch.equal(cache.cpu(), right)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_nz_caches(dtype):
    rows = [make(5, 2, 32, dtype=dtype, low=-9, high=9, seed=s) for s in (1, 2)]
    plain = [make(3, 16, 2, 32, dtype=dtype, low=-9, high=9, seed=s) for s in (3, 4)]
    slots = torch.tensor(SLOTS, dtype=torch.int32).npu()
    caches = [nz(c) for c in plain]
    with on("310P"):
        torch_npu._npu_reshape_and_cache(*rows, *caches, slots)
    for cache, before, row in zip(caches, plain, rows, strict=True):
        assert torch.equal(cache.cpu(), nz(written(before, row, slots)))


def test_nz_caches_of_two_dtypes():
    rows = [make(5, 2, 32, dtype=torch.int8, low=-9, high=9), make(5, 2, 16, dtype=torch.bfloat16)]
    caches = [
        make(3, 2, 16, 32, dtype=torch.int8, low=-9, high=9),
        make(3, 2, 16, 16, dtype=torch.bfloat16),
    ]
    slots = torch.tensor(SLOTS, dtype=torch.int32).npu()
    torch_npu._npu_reshape_and_cache(*rows, *caches, slots)
    for cache, row in zip(caches, rows, strict=True):
        assert torch.equal(cache[0, :, 11].flatten(), row[0].flatten())


@pytest.mark.parametrize(
    "change,message",
    [
        ({"value": make(5, 2, 16, dtype=torch.bfloat16), "value_cache": make(3, 4, 2, 16, dtype=torch.bfloat16)},
         "'value' must be of the dtype of 'key'"),
        ({"value_cache": make(4, 4, 2, 16, dtype=torch.float16)}, "'value_cache' must be of the blocks of 'key_cache'"),
        ({"key_cache": make(3, 4, 4, 16, dtype=torch.float16)[:, :, ::2]}, "'key_cache' must be contiguous"),
        ({"value_cache": make(3, 2, 8, 16, dtype=torch.float16)}, "'value_cache' must be of a multiple of 16 tokens"),
    ],
)  # fmt: skip
def test_refused_pairs(change, message):
    given = {n: make(5, 2, 16, dtype=torch.float16) for n in ("key", "value")}
    given |= {n: make(3, 4, 2, 16, dtype=torch.float16) for n in ("key_cache", "value_cache")}
    given["slot_indices"] = torch.tensor(SLOTS, dtype=torch.int32).npu()
    with pytest.raises(RuntimeError, match=f"_npu_reshape_and_cache: argument {message}"):
        torch_npu._npu_reshape_and_cache(**given | change)


def test_310p_has_nz_alone():
    rows, cache = make(5, 2, 16, dtype=torch.float16), make(3, 16, 2, 16, dtype=torch.float16)
    slots = torch.tensor(SLOTS, dtype=torch.int32).npu()
    with on("310P"), pytest.raises(RuntimeError, match="'key_cache' must be in NZ on 310P"):
        torch_npu._npu_reshape_and_cache(rows, rows, cache, cache.clone(), slots)


def test_keys_alone():
    rows, cache = make(5, 1, 24, dtype=torch.bfloat16), make(3, 4, 1, 24, dtype=torch.bfloat16)
    slots = torch.tensor(SLOTS, dtype=torch.int32).npu()
    expected = written(cache, rows, slots)
    torch_npu._npu_reshape_and_cache_siso(rows, cache, slots)
    assert torch.equal(cache.cpu(), expected)


def test_no_tokens_and_only_skipped_ones():
    rows, cache = make(2, 1, 16, dtype=torch.float16), make(3, 4, 1, 16, dtype=torch.float16)
    before = cache.cpu().clone()
    torch_npu._npu_reshape_and_cache_siso(rows[:0], cache, torch.empty(0, dtype=torch.int32).npu())
    torch_npu._npu_reshape_and_cache_siso(rows, cache, torch.tensor([-1, -5]).int().npu())
    assert torch.equal(cache.cpu(), before)


@pytest.mark.parametrize(
    "slots,message",
    [
        (torch.tensor([0, 12]).int(), "'slot_indices' must be below 12.*received 12"),
        (torch.tensor([0, 1]), "'slot_indices' must be of dtype torch.int32"),
        (torch.tensor([0]).int(), r"'slot_indices' must be of shape \(2\)"),
    ],
)
def test_refusals(slots, message):
    rows, cache = make(2, 1, 16, dtype=torch.float16), make(3, 4, 1, 16, dtype=torch.float16)
    before = cache.cpu().clone()
    with pytest.raises(RuntimeError, match=f"_siso: argument {message}"):
        torch_npu._npu_reshape_and_cache_siso(rows, cache, slots.npu())
    assert torch.equal(cache.cpu(), before)
