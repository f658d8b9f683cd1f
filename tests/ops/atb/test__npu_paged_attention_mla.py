"""_npu_paged_attention_mla against plain attention in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, close, lens, pages
from tests.ops.support import make


def call(dtype=torch.float16, size=48, values=32, lengths=(20, 1, 17), **change):
    query = make(3, 4, size, dtype=dtype)
    cache = make(6, 16, 1, size, dtype=dtype, seed=1)
    table = make(3, 2, dtype=torch.int32, low=0, high=6)
    out = make(3, 4, values, dtype=dtype)
    arguments = dict(
        query=query, key_cache=cache, num_kv_heads=1, num_heads=4, scale_value=0.3,
        block_table=table, context_lens=lens(*lengths), mla_vheadsize=values, out=out,
    )  # fmt: skip
    torch_npu._npu_paged_attention_mla(**(arguments | change))
    rows = []
    for i, length in enumerate(lengths):
        keys = pages(cache, table[i], length)
        rows.append(attention(query[i : i + 1], keys, keys[..., :values], 0.3)[0])
    close(out, torch.cat(rows), dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size,values", [(48, 32), (16, 16), (576, 512)])
def test_values_are_the_first_part_of_keys(dtype, size, values):
    call(dtype, size, values)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"mla_vheadsize": 49}, "'mla_vheadsize' must be from 1 to 48"),
        ({"mla_vheadsize": 16}, r"'out' must be of shape \(3, 4, 16\)"),
        ({"context_lens": lens(33, 1, 1)}, "'context_lens' must be of lengths up to 32"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"_npu_paged_attention_mla: argument {message}"):
        call(**change)
