"""_npu_paged_attention_quant against loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import lens, pages
from tests.ops.support import make


def inputs(**change):
    return dict(
        query=make(2, 4, 32, dtype=torch.int8, low=-9, high=9),
        key_cache=make(6, 16, 2, 32, dtype=torch.int8, low=-9, high=9, seed=1),
        value_cache=make(6, 16, 2, 32, dtype=torch.int8, low=-9, high=9, seed=2),
        num_kv_heads=2,
        num_heads=4,
        scale_value=0.3,
        block_table=make(2, 2, dtype=torch.int32, low=0, high=6),
        context_lens=lens(20, 7),
        quant_type=3,
        outdata_type=27,
        k_descale=make(4, low=0.005, high=0.02),
        v_descale=make(4, low=0.1, high=1),
        out=make(2, 4, 32, dtype=torch.bfloat16),
    ) | change  # fmt: skip


def expected(given):
    out = torch.zeros(2, 4, 32, dtype=torch.float64)
    for i, length in enumerate(given["context_lens"].tolist()):
        key = pages(given["key_cache"], given["block_table"][i], length).double()
        value = pages(given["value_cache"], given["block_table"][i], length).double()
        for head in range(4):
            query = given["query"][i, head].cpu().double()
            factor = given["k_descale"][head].item() * given["scale_value"]
            weights = (key[:, head // 2] @ query) * factor
            weights = (weights - weights.max()).exp()
            whole = (weights * 127).float().half().round().double()
            found = whole @ value[:, head // 2] * given["v_descale"][head].item() / 127
            out[i, head] = found / weights.sum()
    return out


@pytest.mark.parametrize("code,dtype", [(27, torch.bfloat16), (1, torch.float16)])
def test_int8(code, dtype):
    given = inputs(outdata_type=code, out=make(2, 4, 32, dtype=dtype))
    torch_npu._npu_paged_attention_quant(**given)
    torch.testing.assert_close(given["out"].cpu().double(), expected(given), rtol=1e-2, atol=2e-2)


def test_other_quantizations_are_not_supported():
    with pytest.raises(NotImplementedError, match="quant_type 1 is not supported"):
        torch_npu._npu_paged_attention_quant(**inputs(quant_type=1))


@pytest.mark.parametrize(
    "change,message",
    [
        ({"outdata_type": 0}, "'outdata_type' must be 1 or 27, but received 0"),
        ({"outdata_type": 1}, "'out' must be of dtype torch.float16"),
        ({"k_descale": make(2)}, r"'k_descale' must be of shape \(4\)"),
        ({"query": make(2, 4, 32)}, "'query' must be of dtype torch.int8"),
    ],
)
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"_npu_paged_attention_quant: argument {message}"):
        torch_npu._npu_paged_attention_quant(**inputs(**change))
