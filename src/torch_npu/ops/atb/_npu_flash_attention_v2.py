"""_npu_flash_attention_v2: attention of prompts with plain, ALiBi and compressed ALiBi masks."""

from __future__ import annotations

import torch

from softnpu import chips
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
    | 1 | (S, S), (batch, S, S) or (batch, N, S, S) | the mask; a bfloat16 one times -3e38 |
    | 2 (ALiBi) | (S, S), (N, S, S) or (batch, N, S, S) | the mask |
    | 4, 5 (compressed ALiBi) | (256, 256), `slopes` | slope times the mask's value for the distance of two tokens |

    Further left than the compressed mask reaches, its value grows by 1 a token (4) or is the square root of the
    distance (5).

    Args:
        query: (tokens, num_heads, D) or (tokens, num_heads * D), float16 or bfloat16.
        key: (tokens, num_kv_heads, D) or (tokens, num_kv_heads * D).
        value: like `key`, with a head size of its own.
        seq_len: the length of each prompt.
        mask: by `mask_type`, the dtype of `query`.
        slopes: (num_heads,), float32 (float16 on 310P), for the compressed masks.
        kernel_type: 0, or 1 for high precision; the same here. Compressed masks in float16 need 1 on A2 and A3.
        mask_type: 1, 2, 4 or 5.
        scale_value: factor of the scores.
        num_heads: query heads, needed.
        num_kv_heads: a divisor of `num_heads`; 0 for as many.
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
    rules.family("query", "A2", "A3", "A5", "310P", "910A")
    must.choice("kernel_type", kernel_type, (0, 1))
    if mask_type == _prompt.ALIBI_LEFT:
        raise NotImplementedError("_npu_flash_attention_v2: mask_type 6 (left-aligned ALiBi)")
    # without a mask (0) op-plugin hands ATB no tensors at all
    family = chips.current().family
    must.choice("mask_type", mask_type, (1, 2) if family in ("A5", "910A") else (1, 2, 4, 5))
    _prompt.check_dense(query, key, value, seq_len, num_heads, num_kv_heads, out)
    _prompt.check_mask(mask, slopes, mask_type, query, seq_len, num_heads)
    if mask_type in (_prompt.ALIBI_COMPRESS, _prompt.ALIBI_SQRT):
        size = key.shape[-1] // ((num_kv_heads or num_heads) if key.dim() == 2 else 1)
        must.hold(size <= 128, "key", "of a head size up to 128 with a compressed mask", size)
        if family in ("A2", "A3") and query.dtype == torch.float16:
            must.hold(
                kernel_type == 1, "kernel_type", "1 with a compressed float16 mask", kernel_type
            )


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
