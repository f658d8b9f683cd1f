"""_npu_paged_attention_splitfuse against plain attention in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, causal, close, lens, pages
from tests.ops.support import make


def inputs(dtype=torch.bfloat16, new=(5, 1, 2), contexts=(20, 17, 2)):
    tokens = sum(new)
    mask = torch.zeros(tokens, 32)
    start = 0
    for n, length in zip(new, contexts, strict=True):
        mask[start : start + n, :length] = causal(n, length).clamp(min=-10000)
        start += n
    return dict(
        query=make(tokens, 4, 16, dtype=dtype),
        key_cache=make(6, 16, 2, 16, dtype=dtype, seed=1),
        value_cache=make(6, 16, 2, 16, dtype=dtype, seed=2),
        block_table=make(len(new), 2, dtype=torch.int32, low=0, high=6),
        context_lens=lens(*contexts),
        mask=mask.to(dtype).npu(),
        seq_len=lens(*new),
        num_kv_heads=2,
        num_heads=4,
        scale_value=0.3,
        out=make(tokens, 4, 16, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_prompts_and_single_tokens(dtype):
    given = inputs(dtype)
    torch_npu._npu_paged_attention_splitfuse(**given)
    rows, start = [], 0
    for i, (n, length) in enumerate(zip((5, 1, 2), (20, 17, 2), strict=True)):
        keys, values = (
            pages(given[c], given["block_table"][i], length) for c in ("key_cache", "value_cache")
        )
        query = given["query"][start : start + n]
        rows.append(attention(query, keys, values, 0.3, causal(n, length))[0])
        start += n
    close(given["out"], torch.cat(rows), dtype)


@pytest.mark.parametrize(
    "change,message",
    [
        (
            {"seq_len": lens(9, 1, 2)},
            "'seq_len' must be of at most 8 tokens in all, but received 12",
        ),
        ({"seq_len": lens(5, 1)}, r"'seq_len' must be of shape \(3\)"),
        ({"context_lens": lens(40, 1, 2)}, "'mask' must be of at least 8 rows and 40 columns"),
        ({"num_kv_heads": 0}, "'num_kv_heads' must be positive"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"_npu_paged_attention_splitfuse: argument {message}"):
        torch_npu._npu_paged_attention_splitfuse(**(inputs() | change))
