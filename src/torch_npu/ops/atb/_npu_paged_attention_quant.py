"""_npu_paged_attention_quant: int8 decode attention over a paged cache, the weights quantized row by row."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _decode
from torch_npu.ops.atb._attend import Paged, Rows, integers

#: of ATB's quantizations: queries, keys and values in int8, and the weights as they come
ONLINE = 3
#: aclDataType -> the dtype of `out`
OUT_TYPES = {1: torch.float16, 27: torch.bfloat16}


@npu_op(
    "atb::_npu_paged_attention_quant(Tensor query, Tensor key_cache, Tensor value_cache, "
    "int num_kv_heads, int num_heads, float scale_value, Tensor block_table, Tensor context_lens, "
    "int quant_type, int outdata_type, Tensor k_descale, Tensor v_descale, Tensor(a!) out) -> ()",
    host_ok=True,
    ge="PagedAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_paged_attention_quant(
    query,
    key_cache,
    value_cache,
    num_kv_heads,
    num_heads,
    scale_value,
    block_table,
    context_lens,
    quant_type,
    outdata_type,
    k_descale,
    v_descale,
    out,
):
    r"""Attention of single tokens over the pages of their sequences in int8.

    $$ s = scale \cdot a_h q K^T, \quad p = e^{s - \max s}, \quad out = \frac{b_h}{127} \cdot
       \frac{\mathrm{round}(127 p) V}{\sum p} $$

    with the factors $a_h$ (`k_descale`) and $b_h$ (`v_descale`) of each query head.

    Args:
        query: (tokens, num_heads, D), int8.
        key_cache: (blocks, block, num_kv_heads, D), int8.
        value_cache: like `key_cache`.
        num_kv_heads: a divisor of `num_heads`; 0 for as many.
        num_heads: query heads.
        scale_value: factor of the scores.
        block_table: (tokens, pages), int32.
        context_lens: (tokens,), int32, on the host.
        quant_type: 3, the weights are quantized by row as they come.
        outdata_type: the aclDataType of `out`: 1 for float16, 27 for bfloat16.
        k_descale: (num_heads,), float32.
        v_descale: (num_heads,), float32.
        out: (tokens, num_heads, D), written.

    Returns:
        Nothing.
    """
    if quant_type != ONLINE:
        raise NotImplementedError(
            f"_npu_paged_attention_quant: quant_type {quant_type} is not supported, 3 is"
        )
    num_kv_heads = num_kv_heads or num_heads
    source = Paged(key_cache, value_cache, block_table)
    group = num_heads // num_kv_heads
    for index, length in enumerate(integers(context_lens)):
        key, value = (t[0].double() for t in source.of(index, Rows(index, 1, length)))
        q = query[index].double().view(num_kv_heads, group, -1)
        scores = (q @ key.mT).float().view(num_heads, -1) * k_descale.view(-1, 1) * scale_value
        if length == 0:
            out[index] = 0
            continue
        weights = (scores - scores.amax(1, keepdim=True)).exp()
        total = weights.sum(1, keepdim=True)
        whole = (weights * 127).half().round().double().view(num_kv_heads, group, -1)
        found = (whole @ value).float().view(num_heads, -1) * (v_descale.view(-1, 1) / 127)
        out[index] = (found / total).to(OUT_TYPES[outdata_type])


@_npu_paged_attention_quant.check
def _(
    query,
    key_cache,
    value_cache,
    num_kv_heads,
    num_heads,
    block_table,
    context_lens,
    outdata_type,
    k_descale,
    v_descale,
    out,
):
    rules.family("query", "A2", "A3")
    must.choice("outdata_type", outdata_type, OUT_TYPES)
    for name, tensor in (("query", query), ("key_cache", key_cache), ("value_cache", value_cache)):
        must.dtype(name, tensor, torch.int8)
    must.dtype("out", out, OUT_TYPES[outdata_type])
    rules.on_host("context_lens", context_lens)
    for name, scale in (("k_descale", k_descale), ("v_descale", v_descale)):
        must.dtype(name, scale, torch.float32)
        must.shape(name, scale, (num_heads,))
    arguments = (block_table, context_lens, out, "context_lens", True)
    _decode.check(query, key_cache, value_cache, num_kv_heads, num_heads, *arguments)


@_npu_paged_attention_quant.meta
def _():
    return None


_npu_paged_attention_quant.samples = [
    Sample(
        lambda make: (
            make(2, 4, 32, dtype=torch.int8, low=-9, high=9),
            make(6, 16, 2, 32, dtype=torch.int8, low=-9, high=9),
            make(6, 16, 2, 32, dtype=torch.int8, low=-9, high=9, seed=2),
            2,
            4,
            0.25,
            make(2, 2, dtype=torch.int32, low=0, high=6),
            torch.tensor([20, 7], dtype=torch.int32),
            3,
            27,
            make(4, low=0.01, high=0.1),
            make(4, low=0.1, high=1),
            make(2, 4, 32, dtype=torch.bfloat16),
        )
    ),
]
