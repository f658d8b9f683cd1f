"""_npu_flash_attention: attention of prompts with a mask."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _prompt
from torch_npu.ops.atb._attend import in_blocks, natively


@npu_op(
    "atb::_npu_flash_attention(Tensor query, Tensor key, Tensor value, Tensor mask, Tensor seq_len, "
    "float scale_value, int num_heads, int num_kv_heads, Tensor(a!) out) -> ()",
    host_ok=True,
    ge="SelfAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_flash_attention(
    query, key, value, mask, seq_len, scale_value, num_heads, num_kv_heads, out
):
    r"""Attention of prompts that stand one after the other, each over its own keys.

    $$ out = \mathrm{softmax}(scale \cdot Q K^T + c \cdot mask) V $$

    c is 1 for a float16 mask (0 and a large negative number) and -3e38 for a bfloat16 one (0 and 1).

    Args:
        query: (tokens, num_heads, D) or (tokens, num_heads * D), float16 or bfloat16.
        key: (tokens, num_kv_heads, D) or (tokens, num_kv_heads * D).
        value: like `key`, with a head size of its own.
        mask: (S, S) for all prompts, (batch, S, S) or (batch, num_heads, S, S), the dtype of `query`; its upper left
            corner is used. On 310P and 910A also NZ, (1 or batch, S / 16, S, 16).
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
    _prompt.dense(
        in_blocks, query, key, value, *arguments, mask=_plain(mask), mask_type=_prompt.NORM
    )


def _plain(mask):
    """A mask in NZ, (1, S / 16, S, 16) or (batch, S / 16, S, 16), as (S, S) or (batch, S, S)."""
    if mask.dim() != 4 or chips.current().family not in ("310P", "910A"):
        return mask
    plain = mask.transpose(1, 2).flatten(2)
    return plain[0] if len(plain) == 1 else plain


@_npu_flash_attention.native
def _(query, key, value, mask, seq_len, scale_value, num_heads, num_kv_heads, out):
    arguments = (seq_len, scale_value, num_heads, num_kv_heads, out)
    _prompt.dense(
        natively, query, key, value, *arguments, mask=_plain(mask), mask_type=_prompt.NORM
    )


@_npu_flash_attention.check
def _(query, key, value, mask, seq_len, num_heads, num_kv_heads, out):
    rules.family("query", "A2", "A3", "A5", "310P", "910A")
    rules.on_host("seq_len", seq_len, 2)
    _prompt.check_dense(query, key, value, seq_len, num_heads, num_kv_heads, out)
    must.ndim("mask", mask, 2, 4)
    _prompt.check_mask(_plain(mask), None, _prompt.NORM, query, seq_len, num_heads)


@_npu_flash_attention.meta
def _():
    return None


def _arguments(make, dtype, mask):
    return (
        make(9, 4, 16, dtype=dtype),
        make(9, 2, 16, dtype=dtype),
        make(9, 2, 8, dtype=dtype),
        mask(make(8, 8, dtype=dtype, low=1, high=2)),
        torch.tensor([6, 3], dtype=torch.int32),
        0.25,
        4,
        2,
        make(9, 4, 8, dtype=dtype),
    )


_npu_flash_attention.samples = [
    Sample(lambda make: _arguments(make, torch.float16, lambda m: m.triu(1) * -10000)),
    Sample(lambda make: _arguments(make, torch.bfloat16, lambda m: (m.triu(1) > 0).bfloat16())),
]
