"""_npu_flash_attention_prefix_v2: attention of new tokens after a cached prefix, causal or with ALiBi."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _prompt
from torch_npu.ops.atb._attend import in_blocks, natively
from torch_npu.ops.atb._npu_flash_attention_qlens import (
    causal_template,
    check_causal,
    check_prefixes,
)

MASK_TYPES = (_prompt.NORM_COMPRESS, _prompt.ALIBI_COMPRESS, _prompt.ALIBI_SQRT)


@npu_op(
    "atb::_npu_flash_attention_prefix_v2.out(Tensor query, Tensor key_cache, Tensor value_cache, "
    "Tensor block_table, Tensor mask, SymInt[] seq_len, SymInt[] context_lens, *, "
    "Tensor? slopes=None, int kernel_type=1, int mask_type=3, int num_kv_heads=0, int num_heads=0, "
    "float scale_value=1, Tensor(a!) out) -> Tensor(a!)",
    ge="SelfAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_flash_attention_prefix_v2(
    query,
    key_cache,
    value_cache,
    block_table,
    mask,
    seq_len,
    context_lens,
    slopes,
    mask_type,
    num_kv_heads,
    num_heads,
    scale_value,
    out,
):
    r"""Attention of the last `seq_len` tokens of each sequence over all its `context_lens` tokens in pages.

    $$ out = \mathrm{softmax}(scale \cdot Q K^T + bias) V $$

    | mask_type | mask | bias |
    |---|---|---|
    | 3 | (128, 128), not 0 above the diagonal | hides later tokens |
    | 4 (ALiBi) | (256, 256), `slopes` | slope times the mask's value for the distance of two tokens |
    | 5 (ALiBi, square root) | (256, 256), `slopes` | the same, the square root of the distance further left |

    Args:
        query: (tokens, num_heads, D) or (tokens, num_heads * D), float16 or bfloat16.
        key_cache: (blocks, 128, num_kv_heads, D) or (blocks, 128, num_kv_heads * D), D at most 128.
        value_cache: like `key_cache`.
        block_table: (batch, pages), int32.
        mask: by `mask_type`, the dtype of `query`.
        seq_len: the new tokens of each sequence.
        context_lens: all tokens of each sequence; the prefix must be a multiple of 128.
        slopes: (num_heads,), float32, for mask_type 4 and 5.
        kernel_type: 1, high precision.
        mask_type: 3, 4 or 5.
        num_kv_heads: a divisor of `num_heads`; 0 for as many.
        num_heads: query heads, needed.
        scale_value: factor of the scores.
        out: like `query`, written.

    Returns:
        `out`.

    Differs from upstream: compressed ALiBi masks of shape (N, S, 128) raise.
    """
    caches = (key_cache, value_cache, block_table)
    lengths = (seq_len, context_lens, scale_value, num_heads, num_kv_heads, out)
    _prompt.prefixed(in_blocks, query, *caches, *lengths, mask, slopes, mask_type)
    return out


@_npu_flash_attention_prefix_v2.native
def _(
    query,
    key_cache,
    value_cache,
    block_table,
    mask,
    seq_len,
    context_lens,
    slopes,
    mask_type,
    num_kv_heads,
    num_heads,
    scale_value,
    out,
):
    caches = (key_cache, value_cache, block_table)
    lengths = (seq_len, context_lens, scale_value, num_heads, num_kv_heads, out)
    _prompt.prefixed(natively, query, *caches, *lengths, mask, slopes, mask_type)
    return out


@_npu_flash_attention_prefix_v2.check
def _(
    query,
    key_cache,
    value_cache,
    block_table,
    mask,
    seq_len,
    context_lens,
    slopes,
    kernel_type,
    mask_type,
    num_kv_heads,
    num_heads,
    out,
):
    rules.family("query", "A2", "A3")
    must.choice("kernel_type", kernel_type, (1,))
    must.choice("mask_type", mask_type, MASK_TYPES)
    caches = (key_cache, value_cache, block_table)
    _prompt.check_prefixed(query, *caches, seq_len, context_lens, num_heads, num_kv_heads, out)
    rules.written("out", out)
    if mask_type == _prompt.NORM_COMPRESS:
        check_causal(mask, query)
    else:
        must.same_dtype("mask", mask, "query", query)
        _prompt.check_template(mask, slopes, num_heads)
    new = rules.lengths("seq_len", seq_len)
    known = rules.lengths("context_lens", context_lens)
    check_prefixes(new, known)


@_npu_flash_attention_prefix_v2.meta
def _(out):
    return out


def _build(make, mask):
    return (
        make(5, 4, 16, dtype=torch.bfloat16),
        make(6, 128, 2, 16, dtype=torch.bfloat16),
        make(6, 128, 2, 16, dtype=torch.bfloat16, seed=2),
        make(2, 2, dtype=torch.int32, low=0, high=6),
        mask,
        [3, 2],
        [131, 2],
    )


def _options(make, **more):
    out = make(5, 4, 16, dtype=torch.bfloat16)
    return {"num_heads": 4, "num_kv_heads": 2, "scale_value": 0.25, "out": out} | more


_npu_flash_attention_prefix_v2.samples = [
    Sample(lambda make: _build(make, causal_template(make, torch.bfloat16)), _options),
    Sample(
        lambda make: _build(make, make(256, 256, dtype=torch.bfloat16, low=0, high=9)),
        lambda make: _options(make, slopes=make(4, low=-1, high=0), mask_type=5),
    ),
]
