"""_npu_rotary_embedding against loops in fp64."""

import functools

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make


def rotated(rows, positions, cache, halves, dtype):
    """Head by head and pair by pair."""
    cache, size = cache.cpu().to(dtype), cache.shape[1]
    heads = rows.cpu().to(dtype).unflatten(1, (-1, size))
    out = heads.clone()
    half = size // 2
    for token, position in enumerate(positions.flatten().tolist()):
        cos, sin = cache[position, :half], cache[position, half:]
        for i in range(half):
            a, b = (i, i + half) if halves else (2 * i, 2 * i + 1)
            x, y = heads[token, :, a], heads[token, :, b]
            out[token, :, a] = x * cos[i] - y * sin[i]
            out[token, :, b] = y * cos[i] + x * sin[i]
    return out.flatten(1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("halves", [True, False])
def test_rotation(dtype, halves):
    positions = make(2, 3, dtype=torch.int64, low=0, high=9)
    query, key = make(6, 48, dtype=dtype), make(6, 16, dtype=dtype)
    cache = make(9, 16, dtype=dtype)
    plain = [rotated(t, positions, cache, halves, dtype) for t in (query, key)]
    expected = [rotated(t, positions, cache, halves, torch.float64) for t in (query, key)]
    assert torch_npu._npu_rotary_embedding(positions, query, key, 16, cache, halves) is None
    for actual, right, usual in zip((query, key), expected, plain, strict=True):
        assert_accurate(actual, right, usual)


def test_each_call_reads_its_cache():
    positions = make(2, dtype=torch.int64, low=0, high=3)
    query = make(2, 16, dtype=torch.float16)
    for seed in (1, 2):
        cache, given = make(3, 16, seed=seed), query.clone()
        expected = rotated(given, positions, cache, True, torch.float64)
        torch_npu._npu_rotary_embedding(positions, given, query.clone(), 16, cache, True)
        torch.testing.assert_close(given.cpu().double(), expected, rtol=2e-3, atol=1e-3)


def test_four_dimensions_and_any_head_size_for_halves():
    positions = make(6, dtype=torch.int64, low=0, high=9)
    query, key = make(2, 3, 2, 16, dtype=torch.bfloat16), make(2, 3, 1, 16, dtype=torch.bfloat16)
    cache = make(9, 16, dtype=torch.bfloat16)
    right = [
        rotated(t.flatten(2).flatten(0, 1), positions, cache, True, torch.float64)
        for t in (query, key)
    ]
    torch_npu._npu_rotary_embedding(positions, query, key, 8, cache, True)
    for actual, expected in zip((query, key), right, strict=True):
        found = actual.cpu().double().view(6, -1)
        torch.testing.assert_close(found, expected, rtol=1.6e-2, atol=1e-2)


HALF = functools.partial(make, dtype=torch.float16)


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "change,message",
    [
        ({"head_size": 8, "is_neox_style": False}, "'head_size' must be 16, the columns"),
        ({"query": HALF(6, 40)}, "'query' must be of 6 tokens with a multiple of 16"),
        ({"query": HALF(6, 2, 16)}, "'query' must be of 2 or 4 dimensions"),
        ({"query": HALF(6, 64)[:, ::2]}, "'query' must be contiguous"),
        ({"query": make(6, 32)}, "'query' must be of dtype torch.float16 or torch.bfloat16"),
        ({"key": HALF(5, 16)}, "'key' must be of 6 tokens"),
        ({"key": HALF(6, 48)}, "'key' must be of a divisor of the elements of 'query' .32."),
        ({"cos_sin_cache": HALF(9, 8)}, "'cos_sin_cache' must be of 16 to 4096 columns"),
        ({"cos_sin_cache": HALF(9, 16).bfloat16()}, "'cos_sin_cache' must be of dtype torch.float16 or"),
        ({"positions": make(6, dtype=torch.int64, low=9, high=10)}, "'positions' must be from 0 to 8.*received 9"),
        ({"positions": make(6)}, "'positions' must be of dtype"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    given = dict(
        positions=make(6, dtype=torch.int64, low=0, high=9), query=HALF(6, 32), key=HALF(6, 16),
        head_size=16, cos_sin_cache=HALF(9, 16), is_neox_style=True,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=f"_npu_rotary_embedding: argument {message}"):
        torch_npu._npu_rotary_embedding(**(given | change))
