"""_npu_flash_attention_unpad and its v2: attention of prompts without a mask."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _prompt
from torch_npu.ops.atb._attend import in_blocks, natively


@npu_op(
    "atb::_npu_flash_attention_unpad(Tensor query, Tensor key, Tensor value, Tensor seq_len, "
    "float scale_value, int num_heads, int num_kv_heads, Tensor(a!) out) -> ()",
    host_ok=True,
    ge="SelfAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_flash_attention_unpad(
    query, key, value, seq_len, scale_value, num_heads, num_kv_heads, out
):
    r"""Attention of sequences that stand one after the other; every token sees all tokens of its sequence.

    $$ out = \mathrm{softmax}(scale \cdot Q K^T) V $$

    Args:
        query: (tokens, num_heads, D) or (tokens, num_heads * D), float16 or bfloat16.
        key: (tokens, num_kv_heads, D) or (tokens, num_kv_heads * D).
        value: like `key`, with a head size of its own.
        seq_len: (batch,), int32, on the host; or (2, batch), the lengths of queries and of keys, where a sequence
            has as many keys as queries or one query.
        scale_value: factor of the scores.
        num_heads: query heads.
        num_kv_heads: a divisor of `num_heads`; 0 for as many.
        out: the tokens of `query` with the head size of `value`, written.

    Returns:
        Nothing.
    """
    arguments = (seq_len, scale_value, num_heads, num_kv_heads, out)
    _prompt.dense(in_blocks, query, key, value, *arguments)


@_npu_flash_attention_unpad.native
def _(query, key, value, seq_len, scale_value, num_heads, num_kv_heads, out):
    arguments = (seq_len, scale_value, num_heads, num_kv_heads, out)
    _prompt.dense(natively, query, key, value, *arguments)


def _check(query, key, value, seq_len, num_heads, num_kv_heads, out):
    rules.family("query", "A2", "A3", "A5", "310P", "910A")
    rules.on_host("seq_len", seq_len, 2)
    _prompt.check_dense(query, key, value, seq_len, num_heads, num_kv_heads, out)


@_npu_flash_attention_unpad.check
def _(query, key, value, seq_len, num_heads, num_kv_heads, out):
    _check(query, key, value, seq_len, num_heads, num_kv_heads, out)


@_npu_flash_attention_unpad.meta
def _():
    return None


_npu_flash_attention_unpad.samples = [
    Sample(
        lambda make: (
            make(9, 4, 16, dtype=torch.float16),
            make(9, 2, 16, dtype=torch.float16),
            make(9, 2, 8, dtype=torch.float16),
            torch.tensor([6, 3], dtype=torch.int32),
            0.25,
            4,
            2,
            make(9, 4, 8, dtype=torch.float16),
        )
    ),
]


@npu_op(
    "atb::_npu_flash_attention_unpad_v2(Tensor query, Tensor key, Tensor value, Tensor seq_len, "
    "float scale_value, int num_heads, int num_kv_heads, *, int? kernel_type=0, Tensor(a!) out) -> ()",
    host_ok=True,
    ge="SelfAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_flash_attention_unpad_v2(
    query, key, value, seq_len, scale_value, num_heads, num_kv_heads, out
):
    """`_npu_flash_attention_unpad` with a choice of kernels.

    Args:
        kernel_type: 0, or on 310P 2, whose exponentials are approximate; exact here.

    Returns:
        Nothing.
    """
    arguments = (seq_len, scale_value, num_heads, num_kv_heads, out)
    _prompt.dense(in_blocks, query, key, value, *arguments)


@_npu_flash_attention_unpad_v2.native
def _(query, key, value, seq_len, scale_value, num_heads, num_kv_heads, out):
    arguments = (seq_len, scale_value, num_heads, num_kv_heads, out)
    _prompt.dense(natively, query, key, value, *arguments)


@_npu_flash_attention_unpad_v2.check
def _(query, key, value, seq_len, num_heads, num_kv_heads, kernel_type, out):
    must.choice("kernel_type", kernel_type, (None, 0, 2), upstream="kernel_type only supports")
    if kernel_type == 2:
        rules.family("kernel_type", "310P")
    _check(query, key, value, seq_len, num_heads, num_kv_heads, out)


@_npu_flash_attention_unpad_v2.meta
def _():
    return None


_npu_flash_attention_unpad_v2.samples = [
    Sample(
        lambda make: (
            make(9, 4, 16, dtype=torch.float16),
            make(9, 2, 16, dtype=torch.float16),
            make(9, 2, 8, dtype=torch.float16),
            torch.tensor([6, 3], dtype=torch.int32),
            0.25,
            4,
            2,
        ),
        lambda make: {"out": make(9, 4, 8, dtype=torch.float16)},
    ),
]
