"""_npu_flash_attention_v2: attention of prompts with plain, ALiBi and compressed ALiBi masks."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _prompt
from torch_npu.ops.atb._attend import in_blocks, natively


@npu_op(
    "atb::_npu_flash_attention_v2.out(Tensor query, Tensor key, Tensor value, SymInt[] seq_len, *, "
    "Tensor? mask=None, Tensor? slopes=None, int kernel_type=0, int mask_type=2, "
    "float scale_value=1, int num_heads=0, int num_kv_heads=0, Tensor(a!) out) -> Tensor(a!)",
    ge="SelfAttention",
    core="MIX_AIC",
    product=True,
)
def _npu_flash_attention_v2(
    query,
    key,
    value,
    seq_len,
    mask,
    slopes,
    mask_type,
    scale_value,
    num_heads,
    num_kv_heads,
    out,
):
    r"""Attention of prompts that stand one after the other, each over its own keys.

    $$ out = \mathrm{softmax}(scale \cdot Q K^T + bias) V $$

    | mask_type | mask | bias |
    |---|---|---|
    | 0 | none | 0 |
    | 1 | (S, S), (batch, S, S) | the mask; a bfloat16 one times -3e38 |
    | 2 (ALiBi) | (batch, N, S, S) or (N, S, S) | the mask |
    | 4, 5 (compressed ALiBi) | (256, 256), `slopes` | slope times the mask's value for the distance of two tokens |

    Further left than the compressed mask reaches, its value grows by 1 a token (4) or is the square root of the
    distance (5).

    Args:
        query: (tokens, num_heads, D) or (tokens, num_heads * D), float16 or bfloat16.
        key: (tokens, num_kv_heads, D) or (tokens, num_kv_heads * D).
        value: like `key`, with a head size of its own.
        seq_len: the length of each prompt.
        mask: by `mask_type`, the dtype of `query`.
        slopes: (num_heads,) for the compressed masks.
        kernel_type: 0, or 1 for high precision; the same here.
        mask_type: 0, 1, 2, 4 or 5.
        scale_value: factor of the scores.
        num_heads: query heads, needed.
        num_kv_heads: a divisor of `num_heads`, needed.
        out: the tokens of `query` with the head size of `value`, written.

    Returns:
        `out`.

    Differs from upstream: mask_type 6 (left-aligned ALiBi) and compressed masks of shape (N, S, 128) raise.
    """
    arguments = (seq_len, scale_value, num_heads, num_kv_heads, out, mask, slopes, mask_type)
    _prompt.dense(in_blocks, query, key, value, *arguments)
    return out


@_npu_flash_attention_v2.native
def _(
    query, key, value, seq_len, mask, slopes, mask_type, scale_value, num_heads, num_kv_heads, out
):
    arguments = (seq_len, scale_value, num_heads, num_kv_heads, out, mask, slopes, mask_type)
    _prompt.dense(natively, query, key, value, *arguments)
    return out


@_npu_flash_attention_v2.check
def _(
    query, key, value, seq_len, mask, slopes, kernel_type, mask_type, num_heads, num_kv_heads, out
):
    rules.family("query", "A2", "A3", "310P", "910A")
    must.choice("kernel_type", kernel_type, (0, 1))
    if mask_type == _prompt.ALIBI_LEFT:
        raise NotImplementedError("_npu_flash_attention_v2: mask_type 6 (left-aligned ALiBi)")
    must.choice("mask_type", mask_type, (0, 1, 2, 4, 5, 6))
    _prompt.check_dense(query, key, value, seq_len, num_heads, num_kv_heads, out)
    _prompt.check_mask(mask, slopes, mask_type, query, seq_len, num_heads)


@_npu_flash_attention_v2.meta
def _(out):
    return out


def _build(make):
    return (
        make(9, 4, 16, dtype=torch.bfloat16),
        make(9, 2, 16, dtype=torch.bfloat16),
        make(9, 2, 8, dtype=torch.bfloat16),
        [6, 3],
    )


def _options(make, **more):
    out = make(9, 4, 8, dtype=torch.bfloat16)
    return {"num_heads": 4, "num_kv_heads": 2, "scale_value": 0.25, "out": out} | more


_npu_flash_attention_v2.samples = [
    Sample(_build, lambda make: _options(make, mask=make(2, 4, 8, 8, dtype=torch.bfloat16))),
    Sample(
        _build,
        lambda make: _options(
            make,
            mask=make(256, 256, dtype=torch.bfloat16, low=0, high=9),
            slopes=make(4, low=-1, high=0),
            mask_type=4,
        ),
    ),
]
