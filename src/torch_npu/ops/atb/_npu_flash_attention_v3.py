"""_npu_flash_attention_v3: causal attention of prompts with a compressed mask."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _prompt
from torch_npu.ops.atb._attend import in_blocks, natively

#: a mask in NZ, and the matrix it stands for
_NZ = ((1, 8, 128, 16), (1, 128, 2048, 16))


@npu_op(
    "atb::_npu_flash_attention_v3(Tensor query, Tensor key, Tensor value, Tensor mask, Tensor seq_len, "
    "float scale_value, int num_heads, int num_kv_heads, *, int? mask_type=3, Tensor(a!) out) -> ()",
    host_ok=True,
    ge="SelfAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_flash_attention_v3(query, key, value, seq_len, scale_value, num_heads, num_kv_heads, out):
    r"""Causal attention of prompts that stand one after the other, each over its own keys.

    $$ out = \mathrm{softmax}(scale \cdot Q K^T, causal) V $$

    Args:
        query: (tokens, num_heads, D) or (tokens, num_heads * D), float16 or bfloat16.
        key: (tokens, num_kv_heads, D) or (tokens, num_kv_heads * D).
        value: like `key`, with a head size of its own.
        mask: the causal template, the dtype of `query`: 0, and not 0 above the diagonal. (128, 128); on 310P also NZ,
            (1, 8, 128, 16) or (1, 128, 2048, 16); on Ascend950 (2048, 2048).
        seq_len: (batch,), int32, on the host; or (2, batch), the lengths of queries and of keys, where a sequence
            has as many keys as queries or one query.
        scale_value: factor of the scores.
        num_heads: query heads.
        num_kv_heads: a divisor of `num_heads`; 0 for as many.
        mask_type: 3.
        out: the tokens of `query` with the head size of `value`, written.

    Returns:
        Nothing.
    """
    arguments = (seq_len, scale_value, num_heads, num_kv_heads, out)
    _prompt.dense(in_blocks, query, key, value, *arguments, mask_type=_prompt.NORM_COMPRESS)


@_npu_flash_attention_v3.native
def _(query, key, value, seq_len, scale_value, num_heads, num_kv_heads, out):
    arguments = (seq_len, scale_value, num_heads, num_kv_heads, out)
    _prompt.dense(natively, query, key, value, *arguments, mask_type=_prompt.NORM_COMPRESS)


@_npu_flash_attention_v3.check
def _(query, key, value, mask, seq_len, num_heads, num_kv_heads, mask_type, out):
    rules.family("query", "A2", "A3", "A5", "310P")
    must.choice("mask_type", mask_type, (None, 3), upstream="mask_type only supports")
    rules.on_host("seq_len", seq_len, 2)
    _prompt.check_dense(query, key, value, seq_len, num_heads, num_kv_heads, out)
    must.same_dtype("mask", mask, "query", query)
    family, shape = chips.current().family, tuple(mask.shape)
    # compared one by one: sizes of a compiled graph may be symbols, which have no hash
    if family == "310P" and any(shape == nz for nz in _NZ):
        if shape == _NZ[1]:
            must.dtype("mask", mask, torch.float16)
        _prompt.check_triangle(mask[0].transpose(0, 1).flatten(1))
        return
    size = 2048 if family == "A5" else 128
    must.shape("mask", mask, (size, size))
    _prompt.check_triangle(mask)


@_npu_flash_attention_v3.meta
def _():
    return None


_npu_flash_attention_v3.samples = [
    Sample(
        lambda make, dtype=dtype: (
            make(9, 4, 16, dtype=dtype),
            make(9, 2, 16, dtype=dtype),
            make(9, 2, 16, dtype=dtype, seed=2),
            (make(128, 128, dtype=dtype, low=1, high=2).triu(1) > 0).to(dtype),
            torch.tensor([6, 3], dtype=torch.int32),
            0.25,
            4,
            2,
        ),
        lambda make, dtype=dtype: {"out": make(9, 4, 16, dtype=dtype)},
    )
    for dtype in (torch.float16, torch.bfloat16)
]
