"""npu_gather_pa_kv_cache and its functional form against loops."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def index(values):
    return torch.tensor(values, dtype=torch.int32).npu()


def expected(target, cache, table, lengths, starts):
    """Token by token out of (blocks, block, N, D)."""
    out, cache, table = target.cpu().clone(), cache.cpu(), table.cpu()
    row = 0
    for b, length in enumerate(lengths):
        first = starts[b] // cache.shape[1] if starts else 0
        for j in range(length):
            column = first + j // cache.shape[1]
            page = table[b, column].item() if column < table.shape[1] else -1
            inside = 0 <= page < cache.shape[0]
            out[row] = cache[page, j % cache.shape[1]] if inside else 0
            row += 1
    return out


def nz(cache):
    return (
        cache.flatten(2).unflatten(2, (-1, 32 // cache.element_size())).transpose(1, 2).contiguous()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("starts", [None, [0, 5, 8]])
@pytest.mark.parametrize("cumsum", [False, True])
@pytest.mark.parametrize("layout", ["plain", "nz", "nz flat"])
def test_tokens(dtype, starts, cumsum, layout):
    lengths = [7, 0, 5]
    caches = [make(6, 4, 2, s, dtype=dtype, low=-9, high=9, seed=s) for s in (32, 64)]
    targets = [make(13, 2, s, dtype=dtype, low=-9, high=9) for s in (32, 64)]
    table = make(3, 4, dtype=torch.int32, low=0, high=6)
    right = [expected(t, c, table, lengths, starts) for t, c in zip(targets, caches, strict=True)]
    if layout != "plain":
        caches = [nz(c) for c in caches]
    if layout == "nz flat":
        targets, right = [t.flatten(1) for t in targets], [r.flatten(1) for r in right]
    options = {"is_seq_lens_cumsum": cumsum, "seq_offset": index(starts) if starts else None}
    given = (*caches, table, index([0, 7, 7, 12] if cumsum else lengths), *targets)
    copies = torch_npu.npu_gather_pa_kv_cache_functional(*given, **options)
    assert torch_npu.npu_gather_pa_kv_cache(*given, **options) is None
    for target, copy, correct in zip(targets, copies, right, strict=True):
        assert torch.equal(copy.cpu(), correct) and torch.equal(target.cpu(), correct)


def test_pages_outside_give_zero():
    cache = make(6, 4, 2, 16, dtype=torch.float16)
    table = index([[1, 9], [-1, 2]])
    targets = [torch.ones(14, 2, 16, dtype=torch.float16).npu() for _ in range(2)]
    torch_npu.npu_gather_pa_kv_cache(cache, cache, table, index([6, 8]), *targets)
    right = expected(targets[0], cache, table, [6, 8], None)
    assert torch.equal(targets[0].cpu(), right) and not right[4:10].any()


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "change,message",
    [
        ({"seq_lens": index([1])}, r"'seq_lens' must be of shape \(2\)"),
        ({"seq_lens": index([9, 9])}, "'seq_lens' must be of at most 6 tokens, but received 18"),
        ({"seq_lens": index([-1, 2])}, "'seq_lens' must be of lengths of at least 0"),
        (
            {"block_tables": torch.zeros(2, 2).long().npu()},
            "'block_tables' must be of dtype torch.int32",
        ),
        ({"key": make(6, 2, 8, dtype=torch.float16)}, "'key_cache' must be of shape"),
        ({"seq_offset": index([-4, 0])}, "'seq_offset' must be of tokens from 0 on"),
    ],
)
def test_refusals(change, message):
    cache = make(6, 4, 2, 16, dtype=torch.float16)
    given = dict(
        key_cache=cache, value_cache=cache, block_tables=index([[0, 1], [2, 3]]),
        seq_lens=index([3, 3]), key=make(6, 2, 16, dtype=torch.float16),
        value=make(6, 2, 16, dtype=torch.float16),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=f"npu_gather_pa_kv_cache: argument {message}"):
        torch_npu.npu_gather_pa_kv_cache(**(given | change))
