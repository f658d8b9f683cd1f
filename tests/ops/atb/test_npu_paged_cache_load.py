"""npu_paged_cache_load against loops."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def inputs(dtype=torch.float16):
    key = make(6, 4, 2, 16, dtype=dtype, low=-9, high=9)
    value = make(6, 4, 2, 32, dtype=dtype, low=-9, high=9, seed=2)
    return key, value, make(3, 4, dtype=torch.int32, low=0, high=6)


def expected(cache, table, lengths, starts):
    cache, rows = cache.cpu(), []
    for b, length in enumerate(lengths):
        first = (starts[b] // cache.shape[1]) if starts else 0
        rows += [cache[table[b, first + j // 4].item(), j % 4] for j in range(length)]
    return torch.stack(rows) if rows else cache[0, :0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("cumsum", [False, True])
@pytest.mark.parametrize("starts", [None, [0, 5, 8]])
def test_tokens(dtype, cumsum, starts):
    key, value, table = inputs(dtype)
    lengths = [7, 0, 5]
    given = [0, 7, 7, 12] if cumsum else lengths
    options = {"cumsum": cumsum}
    if starts:
        options["seq_starts"] = torch.tensor(starts).int().npu()
    found = torch_npu.atb.npu_paged_cache_load(
        key, value, table, torch.tensor(given).int().npu(), **options
    )
    for actual, cache in zip(found, (key, value), strict=True):
        assert torch.equal(actual.cpu(), expected(cache, table, lengths, starts))


def test_out_form():
    key, value, table = inputs()
    lengths = torch.tensor([3, 2, 4]).int().npu()
    outs = make(9, 2, 16, dtype=torch.float16), make(9, 2, 32, dtype=torch.float16)
    found = torch_npu.atb.npu_paged_cache_load(
        key, value, table, lengths, key=outs[0], value=outs[1]
    )
    assert [t.data_ptr() for t in found] == [t.data_ptr() for t in outs]
    assert torch.equal(outs[0].cpu(), expected(key, table, [3, 2, 4], None))


@pytest.mark.parametrize(
    "lengths,options,message",
    [
        ([1, 2], {}, r"'context_lens' must be of shape \(3\)"),
        ([1, 2, 3], {"cumsum": True}, r"'context_lens' must be of shape \(4\)"),
        (
            [1, 2, 3, 4],
            {"cumsum": True},
            "'context_lens' must be sums of lengths that begin with 0",
        ),
        ([1, -2, 3], {}, "'context_lens' must be of lengths of at least 0"),
    ],
)
def test_refusals(lengths, options, message):
    with pytest.raises(RuntimeError, match=f"npu_paged_cache_load: argument {message}"):
        torch_npu.atb.npu_paged_cache_load(*inputs(), torch.tensor(lengths).int().npu(), **options)
