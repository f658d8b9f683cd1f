"""npu_ring_mla: attention of prompts with rope parts, merged with the result of earlier keys."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb._attend import FAR, Dense, Rows, attend, in_blocks, natively, starts

KERNEL_TYPES = ("kernel_type_high_precision",)
MASK_TYPES = ("no_mask", "mask_type_triu")
CALC_TYPES = ("calc_type_default", "calc_type_first_ring")
_ARGUMENTS = (
    "Tensor q_nope, Tensor q_rope, Tensor k_nope, Tensor k_rope, Tensor value, Tensor mask, "
    "Tensor seqlen, int head_num, int kv_head_num, *, Tensor? pre_out=None, Tensor? prev_lse=None, "
    "float qk_scale=1, str? kernel_type=None, str? mask_type=None, str? input_layout=None, "
    "str? calc_type=None"
)


@npu_op(
    f"atb::npu_ring_mla({_ARGUMENTS}) -> (Tensor, Tensor)",
    out=f"npu_ring_mla.out({_ARGUMENTS}, Tensor(a!) output, Tensor(b!) softmax_lse) "
    "-> (Tensor(a!), Tensor(b!))",
    host_ok=True,
    ge="RingMLA",
    core="MIX_AIC",
    product=True,
)
def npu_ring_mla(**arguments):
    r"""Attention of prompts over a part of their keys, merged with the result of earlier parts.

    $$ o = \mathrm{softmax}(s) V, \quad s = scale \cdot (Q_{nope} K_{nope}^T + Q_{rope} K_{rope}^T), \quad
       l = \log \sum e^s $$

    The first part returns o and l; the others $(o e^l + o' e^{l'}) / (e^l + e^{l'})$ and
    $\log(e^l + e^{l'})$ with the earlier $o'$ and $l'$. A sequence without keys keeps the earlier result.

    Args:
        q_nope: (tokens, head_num, 128), float16 or bfloat16.
        q_rope: (tokens, head_num, 64).
        k_nope: (keys, kv_head_num, 128).
        k_rope: (keys, kv_head_num, 64).
        value: (keys, kv_head_num, 128).
        mask: (512, 512), or one for each sequence, the causal template of 'mask_type_triu'; not read otherwise.
        seqlen: int32 on the host; (batch,) for query and keys, or (2, batch), the lengths of queries and of keys.
        head_num: query heads.
        kv_head_num: a divisor of `head_num`; 0 for as many.
        pre_out: o', (tokens, head_num, 128), with 'calc_type_default'.
        prev_lse: l', (head_num, tokens), float32, with 'calc_type_default'.
        qk_scale: factor of the scores.
        kernel_type: 'kernel_type_high_precision' (the default).
        mask_type: 'no_mask' (the default) or 'mask_type_triu': query i sees the keys up to i.
        input_layout: 'type_bsnd'.
        calc_type: 'calc_type_first_ring' (the default) or 'calc_type_default'.

    Returns:
        The attention (tokens, head_num, 128) and its logsumexp (head_num, tokens), float32.
    """
    return _run(in_blocks, **arguments)


def _run(
    engine,
    q_nope,
    q_rope,
    k_nope,
    k_rope,
    value,
    mask,
    seqlen,
    head_num,
    kv_head_num,
    pre_out,
    prev_lse,
    qk_scale,
    kernel_type,
    mask_type,
    input_layout,
    calc_type,
):
    del mask, kernel_type, input_layout  # causal is causal, scores are float32, one layout
    query, key = torch.cat((q_nope, q_rope), -1), torch.cat((k_nope, k_rope), -1)
    lengths, contexts = _lengths(seqlen)
    edge = 0 if mask_type == "mask_type_triu" else FAR
    sequences = [
        Rows(start, n, length, kv_start, edge=edge)
        for start, n, length, kv_start in zip(
            starts(lengths), lengths, contexts, starts(contexts), strict=True
        )
    ]
    out = value.new_zeros((q_nope.shape[0], head_num, value.shape[2]))
    lse = torch.full((head_num, q_nope.shape[0]), torch.inf)
    attend(engine, query, Dense(key, value), out, sequences, qk_scale, lse)
    empty = lse == torch.inf  # rows without keys
    if calc_type != "calc_type_default":
        return out, lse.masked_fill(empty, 0)
    now = lse.masked_fill(empty, -torch.inf)
    total = torch.logaddexp(now, prev_lse)
    share = (now - total).exp().t().unsqueeze(-1).nan_to_num(0)
    earlier = (prev_lse - total).exp().t().unsqueeze(-1).nan_to_num(0)
    merged = out.float() * share + pre_out.float() * earlier
    return merged.to(out.dtype), total


def _lengths(seqlen):
    both = seqlen.tolist()
    return (both[0], both[1]) if seqlen.dim() == 2 else (both, both)


@npu_ring_mla.native
def _(**arguments):
    return _run(natively, **arguments)


@npu_ring_mla.check
def _(
    q_nope,
    q_rope,
    k_nope,
    k_rope,
    value,
    mask,
    seqlen,
    head_num,
    kv_head_num,
    pre_out,
    prev_lse,
    kernel_type,
    mask_type,
    input_layout,
    calc_type,
):
    rules.family("q_nope", "A2", "A3")
    must.choice("kernel_type", kernel_type, (*KERNEL_TYPES, None))
    must.choice("mask_type", mask_type, (*MASK_TYPES, None))
    must.choice("input_layout", input_layout, ("type_bsnd", None))
    must.choice("calc_type", calc_type, (*CALC_TYPES, None))
    rules.heads(head_num, kv_head_num, ("head_num", "kv_head_num"))
    must.dtype("q_nope", q_nope, *rules.FLOATS)
    named = {"q_rope": q_rope, "k_nope": k_nope, "k_rope": k_rope, "value": value}
    for name, tensor in named.items():
        must.same_dtype(name, tensor, "q_nope", q_nope)
    must.shape("q_nope", q_nope, (None, head_num, 128))
    must.shape("q_rope", q_rope, (q_nope.shape[0], head_num, 64))
    kv_head_num = kv_head_num or head_num
    must.shape("k_nope", k_nope, (None, kv_head_num, 128))
    must.shape("k_rope", k_rope, (k_nope.shape[0], kv_head_num, 64))
    must.shape("value", value, (k_nope.shape[0], kv_head_num, 128))
    if mask_type == "mask_type_triu":
        must.same_dtype("mask", mask, "q_nope", q_nope)
        must.ndim("mask", mask, 2, 3)
        if mask.dim() == 3:
            must.shape("mask", mask, (seqlen.shape[-1], None, None))
    if calc_type == "calc_type_default":
        must.present("pre_out", pre_out, "with calc_type 'calc_type_default'")
        must.present("prev_lse", prev_lse, "with calc_type 'calc_type_default'")
        must.same_dtype("pre_out", pre_out, "q_nope", q_nope)
        must.shape("pre_out", pre_out, (q_nope.shape[0], head_num, 128))
        must.dtype("prev_lse", prev_lse, torch.float32)
        must.shape("prev_lse", prev_lse, (head_num, q_nope.shape[0]))
    expected = "a CPU tensor"
    upstream = (
        "Expected CPU tensor, please check whether the input seqlen tensor device is correct."
    )
    host = seqlen.device.type in ("cpu", "meta")
    must.hold(host, "seqlen", expected, f"one on {seqlen.device}", upstream=upstream)
    must.dtype("seqlen", seqlen, torch.int32)
    must.ndim("seqlen", seqlen, 1, 2)
    if seqlen.dim() == 2:
        must.shape("seqlen", seqlen, (2, None))
    if must.has_data(seqlen):
        new, known = _lengths(seqlen)
        rules.lengths("seqlen", new, q_nope.shape[0])
        rules.lengths("seqlen", known, k_nope.shape[0])


@npu_ring_mla.meta
def _(q_nope, value, head_num):
    tokens = q_nope.shape[0]
    out = q_nope.new_empty((tokens, head_num, value.shape[2]))
    return out, q_nope.new_empty((head_num, tokens), dtype=torch.float32)


def _inputs(make, lengths):
    return (
        make(7, 4, 128, dtype=torch.bfloat16),
        make(7, 4, 64, dtype=torch.bfloat16),
        make(9, 2, 128, dtype=torch.bfloat16),
        make(9, 2, 64, dtype=torch.bfloat16),
        make(9, 2, 128, dtype=torch.bfloat16, seed=2),
        make(512, 512, dtype=torch.bfloat16).triu(1),
        torch.tensor(lengths, dtype=torch.int32),
        4,
        2,
    )


npu_ring_mla.samples = [
    Sample(lambda make: _inputs(make, [4, 3]), {"mask_type": "mask_type_triu", "qk_scale": 0.1}),
    Sample(
        lambda make: _inputs(make, [[4, 3], [9, 0]]),
        lambda make: {
            "pre_out": make(7, 4, 128, dtype=torch.bfloat16),
            "prev_lse": make(4, 7),
            "calc_type": "calc_type_default",
            "qk_scale": 0.1,
        },
    ),
]
