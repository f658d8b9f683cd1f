"""npu_self_attention_prefix_encoder: attention of new tokens after a cached prefix."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb import _prompt
from torch_npu.ops.atb._attend import in_blocks, natively
from torch_npu.ops.atb._npu_flash_attention_qlens import check_causal, check_prefixes

MASK_TYPES = {
    "mask_type_norm_compress": _prompt.NORM_COMPRESS,
    "mask_type_alibi_compress": _prompt.ALIBI_COMPRESS,
    "mask_type_alibi_compress_sort": _prompt.ALIBI_SQRT,
    "mask_type_causal_mask": _prompt.CAUSAL,
}
_ARGUMENTS = (
    "Tensor query, Tensor key, Tensor value, Tensor block_tables, SymInt[] seqlen, "
    "SymInt[] kv_seqlen, int q_headnum, float qk_scale, int kv_headnum, *, Tensor? mask=None, "
    "Tensor? slopes=None, str? mask_type=None"
)


@npu_op(
    f"atb::npu_self_attention_prefix_encoder({_ARGUMENTS}) -> Tensor",
    out=f"npu_self_attention_prefix_encoder.out({_ARGUMENTS}, Tensor(a!) output) -> Tensor(a!)",
    ge="SelfAttention",
    core="MIX_AIC",
    product=True,
)
def npu_self_attention_prefix_encoder(**arguments):
    r"""Attention of the last `seqlen` tokens of each sequence over all its `kv_seqlen` tokens in pages.

    $$ out = \mathrm{softmax}(scale \cdot Q K^T + bias) V $$

    Args:
        query: (tokens, q_headnum, D) or (tokens, q_headnum * D), float16 or bfloat16.
        key: (blocks, 128, kv_headnum, D) or (blocks, 128, kv_headnum * D), D a multiple of 16 up to 128.
        value: like `key`.
        block_tables: (batch, pages), int32.
        seqlen: the new tokens of each sequence.
        kv_seqlen: all tokens of each sequence; the prefix must be a multiple of 128.
        q_headnum: query heads.
        qk_scale: factor of the scores.
        kv_headnum: a divisor of `q_headnum`; 0 for as many.
        mask: (128, 128) causal template or (256, 256) ALiBi template, by `mask_type`.
        slopes: (q_headnum,), float32, with an ALiBi template.
        mask_type: 'mask_type_causal_mask' (the default, without a mask), 'mask_type_norm_compress',
            'mask_type_alibi_compress' or 'mask_type_alibi_compress_sort' (the square root of the distance).

    Returns:
        The attention, like `query`.
    """
    return _run(in_blocks, **arguments)


def _run(
    engine,
    query,
    key,
    value,
    block_tables,
    seqlen,
    kv_seqlen,
    q_headnum,
    qk_scale,
    kv_headnum,
    mask,
    slopes,
    mask_type,
):
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    kind = MASK_TYPES[mask_type or "mask_type_causal_mask"]
    lengths = (seqlen, kv_seqlen, qk_scale, q_headnum, kv_headnum, out)
    _prompt.prefixed(engine, query, key, value, block_tables, *lengths, mask, slopes, kind)
    return out


@npu_self_attention_prefix_encoder.native
def _(**arguments):
    return _run(natively, **arguments)


@npu_self_attention_prefix_encoder.check
def _(
    query,
    key,
    value,
    block_tables,
    seqlen,
    kv_seqlen,
    q_headnum,
    kv_headnum,
    mask,
    slopes,
    mask_type,
):
    rules.family("query", "A2", "A3")
    must.choice("mask_type", mask_type, (*MASK_TYPES, None))
    names = ("q_headnum", "kv_headnum", "key", "value", "block_tables", "kv_seqlen")
    lengths = (seqlen, kv_seqlen, q_headnum, kv_headnum, query)
    _prompt.check_prefixed(query, key, value, block_tables, *lengths, names)
    kind = MASK_TYPES[mask_type or "mask_type_causal_mask"]
    if kind == _prompt.NORM_COMPRESS:
        must.present("mask", mask, f"with mask_type {mask_type!r}")
        check_causal(mask, query)
    elif kind != _prompt.CAUSAL:
        must.present("mask", mask, f"with mask_type {mask_type!r}")
        must.same_dtype("mask", mask, "query", query)
        _prompt.check_template(mask, slopes, q_headnum)
    check_prefixes(rules.lengths("seqlen", seqlen), rules.lengths("kv_seqlen", kv_seqlen))


@npu_self_attention_prefix_encoder.meta
def _(query):
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def _build(make):
    return (
        make(5, 4, 16, dtype=torch.bfloat16),
        make(6, 128, 2, 16, dtype=torch.bfloat16),
        make(6, 128, 2, 16, dtype=torch.bfloat16, seed=2),
        make(2, 2, dtype=torch.int32, low=0, high=6),
        [3, 2],
        [131, 2],
        4,
        0.25,
        2,
    )


npu_self_attention_prefix_encoder.samples = [
    Sample(_build),
    Sample(
        _build,
        lambda make: {
            "mask": make(256, 256, dtype=torch.bfloat16, low=0, high=9),
            "slopes": make(4, low=-1, high=0),
            "mask_type": "mask_type_alibi_compress",
        },
    ),
]
