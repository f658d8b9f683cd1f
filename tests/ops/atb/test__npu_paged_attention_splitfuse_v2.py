"""_npu_paged_attention_splitfuse_v2, as 310P has it, against plain attention in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, causal, close, lens, pages
from tests.ops.families import on
from tests.ops.support import make

NEW, CONTEXTS = (5, 1, 2), (20, 17, 2)


@pytest.fixture(autouse=True)
def chip():
    with on("310P"):
        yield


def nz(cache):
    return cache.flatten(2).unflatten(2, (-1, 16)).transpose(1, 2).contiguous()


def inputs():
    mask = (torch.ones(2048, 2048).triu(1) * -10000).half().npu()
    plain = {
        n: make(6, 16, 2, 32, dtype=torch.float16, seed=s)
        for n, s in (("key_cache", 1), ("value_cache", 2))
    }
    given = dict(
        query=make(8, 4, 32, dtype=torch.float16),
        **{name: nz(cache) for name, cache in plain.items()},
        block_table=make(3, 2, dtype=torch.int32, low=0, high=6),
        context_lens=lens(*CONTEXTS).npu(),
        mask=mask,
        seq_len=lens(*NEW),
        num_kv_heads=2,
        num_heads=4,
        scale_value=0.3,
        out=make(8, 4, 32, dtype=torch.float16),
    )  # fmt: skip
    return given, plain


@pytest.mark.parametrize("lead", [(), (1,), (1, 1)])
def test_prompts_and_single_tokens(lead):
    given, plain = inputs()
    given["mask"] = given["mask"].view(*lead, 2048, 2048)
    assert torch_npu._npu_paged_attention_splitfuse_v2(**given) is None
    rows, start = [], 0
    for i, (n, length) in enumerate(zip(NEW, CONTEXTS, strict=True)):
        keys, values = (pages(cache, given["block_table"][i], length) for cache in plain.values())
        query = given["query"][start : start + n]
        rows.append(attention(query, keys, values, 0.3, causal(n, length))[0])
        start += n
    close(given["out"], torch.cat(rows), torch.float16)


def test_other_chips_have_no_such_operator():
    given, _ = inputs()
    with (
        on("A2"),
        pytest.raises(RuntimeError, match="argument 'device' must be of the family 310P"),
    ):
        torch_npu._npu_paged_attention_splitfuse_v2(**given)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"mask_type": 3}, "'mask_type' must be None or 5, but received 3"),
        ({"mask": make(128, 128, dtype=torch.float16)}, r"'mask' must be of shape \(2048, 2048\)"),
        ({"seq_len": lens(5, 1)}, r"'seq_len' must be of shape \(3\)"),
        ({"seq_len": lens(3, 1, 4)}, "'context_lens' must be at least the new tokens .4."),
        ({"query": make(8, 4, 32, dtype=torch.bfloat16)}, "'key_cache' must be of the dtype of 'query'"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    given, _ = inputs()
    with pytest.raises(RuntimeError, match=f"_splitfuse_v2: argument {message}"):
        torch_npu._npu_paged_attention_splitfuse_v2(**given | change)
