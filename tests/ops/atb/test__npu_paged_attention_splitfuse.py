"""_npu_paged_attention_splitfuse against plain attention in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, causal, close, lens, pages
from tests.ops.families import on
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


def test_a_mask_of_each_sequence_and_head():
    given = inputs(torch.float16)
    given["mask"] = make(3, 4, 5, 20, dtype=torch.float16, low=-4, high=4)
    torch_npu._npu_paged_attention_splitfuse(**given)
    rows, start = [], 0
    for i, (n, length) in enumerate(zip((5, 1, 2), (20, 17, 2), strict=True)):
        keys, values = (
            pages(given[c], given["block_table"][i], length) for c in ("key_cache", "value_cache")
        )
        bias = given["mask"][i, :, :n, :length].cpu()
        rows.append(attention(given["query"][start : start + n], keys, values, 0.3, bias)[0])
        start += n
    close(given["out"], torch.cat(rows), torch.float16)


def test_310p_reads_lengths_on_the_device():
    given = inputs(torch.float16)
    plain = inputs(torch.float16)
    torch_npu._npu_paged_attention_splitfuse(**plain)
    for name in ("key_cache", "value_cache"):
        given[name] = given[name].flatten(2).unflatten(2, (-1, 16)).transpose(1, 2).contiguous()
    given["mask"] = given["mask"].unflatten(1, (-1, 16)).transpose(0, 1).unsqueeze(0).contiguous()
    given["context_lens"] = given["context_lens"].npu()
    with on("310P"):
        torch_npu._npu_paged_attention_splitfuse(**given)
    torch.testing.assert_close(given["out"], plain["out"])


@pytest.mark.parametrize(
    "change,message",
    [
        (
            {"seq_len": lens(9, 1, 2)},
            "'seq_len' must be of at most 8 tokens in all, but received 12",
        ),
        ({"seq_len": lens(5, 1)}, r"'seq_len' must be of shape \(3\)"),
        ({"mask": make(8, 19, dtype=torch.bfloat16)}, "'mask' must be of at least 8 rows and"),
        ({"context_lens": lens(40, 1, 2)}, "'context_lens' must be of lengths up to 32"),
        ({"num_kv_heads": 0}, r"'key_cache' must be of shape \(\*, \*, 4, 16\)"),
        ({"num_kv_heads": -1}, "'num_kv_heads' must be 0 or a divisor"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"_npu_paged_attention_splitfuse: argument {message}"):
        torch_npu._npu_paged_attention_splitfuse(**(inputs() | change))
