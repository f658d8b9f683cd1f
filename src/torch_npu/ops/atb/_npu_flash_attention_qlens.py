"""_npu_flash_attention_qlens: causal attention of new tokens after a cached prefix."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _prompt
from torch_npu.ops.atb._attend import in_blocks, natively


@npu_op(
    "atb::_npu_flash_attention_qlens(Tensor query, Tensor key_cache, Tensor value_cache, "
    "Tensor block_table, Tensor mask, Tensor seq_len, Tensor context_lens, int num_kv_heads, "
    "int num_heads, float scale_value, Tensor(a!) out) -> ()",
    host_ok=True,
    ge="SelfAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_flash_attention_qlens(
    query,
    key_cache,
    value_cache,
    block_table,
    seq_len,
    context_lens,
    num_kv_heads,
    num_heads,
    scale_value,
    out,
):
    r"""Causal attention of the last `seq_len` tokens of each sequence over all its `context_lens` tokens in pages.

    $$ out = \mathrm{softmax}(scale \cdot Q K^T, causal) V $$

    Args:
        query: (tokens, num_heads, D) or (tokens, num_heads * D), float16 or bfloat16.
        key_cache: (blocks, 128, num_kv_heads, D) or (blocks, 128, num_kv_heads * D), D a multiple of 16 up to 128.
        value_cache: like `key_cache`.
        block_table: (batch, pages), int32.
        mask: (128, 128), the causal template: not 0 above the diagonal, 0 elsewhere.
        seq_len: (batch,), int32 on the host, the new tokens.
        context_lens: (batch,), int32 on the host, all tokens; the prefix must be a multiple of 128.
        num_kv_heads: a divisor of `num_heads`; 0 for as many.
        num_heads: query heads.
        scale_value: factor of the scores.
        out: like `query`, written.

    Returns:
        Nothing.
    """
    caches = (key_cache, value_cache, block_table)
    lengths = (seq_len, context_lens, scale_value, num_heads, num_kv_heads, out)
    _prompt.prefixed(in_blocks, query, *caches, *lengths)


@_npu_flash_attention_qlens.native
def _(
    query,
    key_cache,
    value_cache,
    block_table,
    seq_len,
    context_lens,
    num_kv_heads,
    num_heads,
    scale_value,
    out,
):
    caches = (key_cache, value_cache, block_table)
    lengths = (seq_len, context_lens, scale_value, num_heads, num_kv_heads, out)
    _prompt.prefixed(natively, query, *caches, *lengths)


@_npu_flash_attention_qlens.check
def _(
    query,
    key_cache,
    value_cache,
    block_table,
    mask,
    seq_len,
    context_lens,
    num_kv_heads,
    num_heads,
    out,
):
    rules.family("query", "A2", "A3")
    rules.on_host("seq_len", seq_len)
    rules.on_host("context_lens", context_lens)
    caches = (key_cache, value_cache, block_table)
    _prompt.check_prefixed(query, *caches, seq_len, context_lens, num_heads, num_kv_heads, out)
    rules.written("out", out)
    check_causal(mask, query)
    new, known = (rules.lengths("lengths", n) for n in (seq_len, context_lens))
    check_prefixes(new, known)


def check_causal(mask, query):
    """The 128 x 128 template of a causal mask."""
    must.same_dtype("mask", mask, "query", query)
    must.shape("mask", mask, (128, 128))
    _prompt.check_triangle(mask)


def check_prefixes(new, known):
    """The cached part of each sequence is a multiple of 128 tokens."""
    for short, long in zip(new or [], known or [], strict=False):
        expected = "the new tokens and a prefix of a multiple of 128"
        must.hold((long - short) % 128 == 0, "context_lens", expected, f"{long} with {short} new")


@_npu_flash_attention_qlens.meta
def _():
    return None


def causal_template(make, dtype):
    """A mask as upstream's programs make it."""
    return (make(128, 128, dtype=dtype, low=1, high=2).triu(1) > 0).to(dtype)


_npu_flash_attention_qlens.samples = [
    Sample(
        lambda make: (
            make(5, 4, 16, dtype=torch.bfloat16),
            make(6, 128, 2, 16, dtype=torch.bfloat16),
            make(6, 128, 2, 16, dtype=torch.bfloat16, seed=2),
            make(2, 2, dtype=torch.int32, low=0, high=6),
            causal_template(make, torch.bfloat16),
            torch.tensor([3, 2], dtype=torch.int32),
            torch.tensor([131, 2], dtype=torch.int32),
            2,
            4,
            0.25,
            make(5, 4, 16, dtype=torch.bfloat16),
        )
    ),
]
