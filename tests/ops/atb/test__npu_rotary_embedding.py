"""_npu_rotary_embedding against loops in fp64."""

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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
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
    positions, query = make(2, dtype=torch.int64, low=0, high=3), make(2, 16)
    for seed in (1, 2):
        cache, given = make(3, 16, seed=seed), query.clone()
        expected = rotated(given, positions, cache, True, torch.float64)
        torch_npu._npu_rotary_embedding(positions, given, query.clone(), 16, cache, True)
        torch.testing.assert_close(given.cpu().double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"head_size": 8}, "'head_size' must be at least 16"),
        ({"query": make(6, 40)}, "'query' must be of 6 tokens with a multiple of 16"),
        ({"key": make(5, 16)}, "'key' must be of 6 tokens"),
        ({"positions": make(6, dtype=torch.int64, low=9, high=10)}, "'positions' must be from 0 to 8.*received 9"),
        ({"positions": make(6)}, "'positions' must be of dtype"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    given = dict(
        positions=make(6, dtype=torch.int64, low=0, high=9), query=make(6, 32), key=make(6, 16),
        head_size=16, cos_sin_cache=make(9, 16), is_neox_style=True,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=f"_npu_rotary_embedding: argument {message}"):
        torch_npu._npu_rotary_embedding(**(given | change))
