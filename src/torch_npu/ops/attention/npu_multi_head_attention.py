"""npu_multi_head_attention and its backward: the whole layer, projections included."""

from __future__ import annotations

import math

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, kernel_generator, npu_op
from torch_npu.ops.attention._dropout import unpacked

_ALIGN = 16


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    y = wide(x) @ wide(weight).mT
    return y if bias is None else y + wide(bias)


def _split(x: torch.Tensor, heads: int, tokens: int) -> torch.Tensor:
    """(B * S, N * D) as (B, N, S, D)."""
    return x.view(-1, tokens, heads, x.shape[1] // heads).transpose(1, 2)


def _merge(x: torch.Tensor) -> torch.Tensor:
    """(B, N, S, D) as (B * S, N * D)."""
    return x.transpose(1, 2).flatten(2).flatten(0, 1)


def _bits(kept: torch.Tensor) -> torch.Tensor:
    """A boolean mask as bytes, eight values each, the first in the lowest bit."""
    powers = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=kept.device)
    return (kept.reshape(-1, 8).to(torch.uint8) * powers).sum(-1, dtype=torch.uint8)


def _weights():
    return "query_weight", "key_weight", "value_weight", "out_proj_weight"


def _biases():
    return "query_bias", "key_bias", "value_bias", "out_proj_bias"


def _check_sizes(query, key, value, weights, biases, heads, size, src_len, tgt_len, dropout_prob):
    for name, number in zip(
        ("attn_head_num", "attn_dim_per_head", "src_len", "tgt_len"),
        (heads, size, src_len, tgt_len),
        strict=True,
    ):
        fits = number > 0 and number % _ALIGN == 0
        must.hold(fits, name, f"a positive multiple of {_ALIGN}", number)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        must.dtype(name, tensor, torch.float16)
        must.ndim(name, tensor, 2)
    width, rows = heads * size, query.shape[0]
    must.hold(
        rows % tgt_len == 0,
        "query",
        f"of B * tgt_len rows (tgt_len {tgt_len})",
        rows,
        ErrCode.PARAM,
    )
    must.shape("query", query, (rows, width))
    tokens = rows // tgt_len * src_len
    must.shape("key", key, (tokens, width))
    must.shape("value", value, (tokens, width))
    for name, weight in zip(_weights(), weights, strict=True):
        must.dtype(name, weight, torch.float16)
        must.shape(name, weight, (width, width))
    for name, bias in zip(_biases(), biases, strict=True):
        must.dtype(name, bias, torch.float16)
        must.shape(name, bias, (width,))
    must.hold(0 <= dropout_prob < 1, "dropout_prob", "from 0 to below 1", dropout_prob)


@npu_op(
    "npu_multi_head_attention(Tensor query, Tensor key, Tensor value, Tensor query_weight, "
    "Tensor key_weight, Tensor value_weight, Tensor attn_mask, Tensor out_proj_weight, "
    "Tensor? query_bias, Tensor? key_bias, Tensor? value_bias, Tensor? out_proj_bias, "
    "Tensor? dropout_mask, int attn_head_num, int attn_dim_per_head, int src_len, int "
    "tgt_len, float dropout_prob, bool softmax_use_float) -> (Tensor, Tensor, Tensor, "
    "Tensor, Tensor, Tensor, Tensor, Tensor)",
    random=True,
    output_differentiability=(True, False, False, False, False, False, False, False),
    core="MIX_AIC",
    aclop=True,
)
def npu_multi_head_attention(
    query,
    key,
    value,
    query_weight,
    key_weight,
    value_weight,
    attn_mask,
    out_proj_weight,
    query_bias,
    key_bias,
    value_bias,
    out_proj_bias,
    dropout_mask,
    attn_head_num,
    attn_dim_per_head,
    src_len,
    tgt_len,
    dropout_prob,
    softmax_use_float,
):
    r"""A multi-head attention layer: projections, attention, dropout, output projection.

    $$ q = \frac{x_q W_q^T + b_q}{\sqrt{D}},\quad k = x_k W_k^T + b_k,\quad v = x_v W_v^T + b_v $$
    $$ y = \mathrm{dropout}(\mathrm{softmax}(q k^T + mask)) \cdot v \cdot W_o^T + b_o $$

    Args:
        query: float16 (B * tgt_len, H), H = attn_head_num * attn_dim_per_head.
        key, value: float16 (B * src_len, H).
        query_weight, key_weight, value_weight, out_proj_weight: float16 (H, H).
        attn_mask: float16, broadcastable to (B, N, tgt_len, src_len); added to the scores.
        query_bias, key_bias, value_bias, out_proj_bias: float16 (H,), or None.
        dropout_mask: uint8, one bit a weight (B * N * tgt_len * src_len / 8 bytes), 1 keeps; drawn
            when None. Not read when dropout_prob is 0, so that it may be anything then.
        attn_head_num, attn_dim_per_head, src_len, tgt_len: N, D and the numbers of tokens,
            multiples of 16.
        dropout_prob: the probability that dropout clears a weight (the page calls it the
            probability of keeping, but upstream passes 1 - dropout_prob as that).
        softmax_use_float: the softmax is kept in float32.

    Returns:
        y (B * tgt_len, H); dropout_mask; query_res (scaled), key_res and value_res (B, N, S, D);
        attn_scores, the softmax (float32 with softmax_use_float); attn_res, after dropout; context
        (B * tgt_len, H). Only y has a gradient.
    """
    dtype = query.dtype
    q = (_linear(query, query_weight, query_bias) * attn_dim_per_head**-0.5).to(dtype)
    k = _linear(key, key_weight, key_bias).to(dtype)
    v = _linear(value, value_weight, value_bias).to(dtype)
    q = _split(q, attn_head_num, tgt_len).contiguous()
    k, v = (_split(t, attn_head_num, src_len).contiguous() for t in (k, v))
    scores = wide(q) @ wide(k).mT + wide(attn_mask)
    softmax = scores.softmax(-1).to(
        torch.float32 if softmax_use_float and dtype != torch.float64 else dtype
    )
    keep = 1 - dropout_prob
    if dropout_prob == 0 or dropout_mask is None:
        draw = torch.empty_like(softmax).uniform_(generator=kernel_generator())
        bits = _bits(draw < keep)
    else:
        bits = dropout_mask.clone()
    kept = unpacked(bits, softmax.numel()).view(softmax.shape)
    attn = (wide(softmax) * kept / keep).to(dtype)
    context = _merge((wide(attn) @ wide(v)).to(dtype))
    y = _linear(context, out_proj_weight, out_proj_bias).to(dtype)
    return y, bits, q, k, v, softmax, attn, context


@npu_multi_head_attention.check
def _(
    query,
    key,
    value,
    query_weight,
    key_weight,
    value_weight,
    attn_mask,
    out_proj_weight,
    query_bias,
    key_bias,
    value_bias,
    out_proj_bias,
    dropout_mask,
    attn_head_num,
    attn_dim_per_head,
    src_len,
    tgt_len,
    dropout_prob,
):
    weights = (query_weight, key_weight, value_weight, out_proj_weight)
    biases = (query_bias, key_bias, value_bias, out_proj_bias)
    _check_sizes(query, key, value, weights, biases, attn_head_num, attn_dim_per_head, src_len,
                 tgt_len, dropout_prob)  # fmt: skip
    must.dtype("attn_mask", attn_mask, torch.float16)
    full = (query.shape[0] // tgt_len, attn_head_num, tgt_len, src_len)
    fits = attn_mask.dim() == 4 and all(
        h in (1, w) for h, w in zip(attn_mask.shape, full, strict=True)
    )
    must.hold(fits, "attn_mask", f"broadcastable to {full}", tuple(attn_mask.shape), ErrCode.PARAM)
    _check_mask(dropout_mask, full, dropout_prob)


def _check_mask(dropout_mask, full, dropout_prob):
    """A bit for each weight, where dropout reads it."""
    if dropout_mask is not None and dropout_prob > 0:
        must.dtype("dropout_mask", dropout_mask, torch.uint8)
        must.shape("dropout_mask", dropout_mask, (math.prod(full) // 8,))


@npu_multi_head_attention.backward
def _(dy, *, results, **a):
    _, bits, q, k, v, softmax, attn, context = results
    found = npu_multi_head_attention_backward(
        *(
            a[name]
            for name in ("query", "key", "value", "query_weight", "key_weight", "value_weight")
        ),
        *(
            a[name]
            for name in ("out_proj_weight", "query_bias", "key_bias", "value_bias", "out_proj_bias")
        ),
        *(q, k, v, softmax, attn, context, dy, bits),
        *(a[name] for name in ("attn_head_num", "attn_dim_per_head", "src_len", "tgt_len")),
        *(a["dropout_prob"], a["softmax_use_float"]),
    )
    grads = dict(zip((*_weights(), "query", "key", "value", *_biases()), found, strict=True))
    return {n: g.flatten() if n.endswith("_bias") else g for n, g in grads.items()}


npu_multi_head_attention.samples = [
    Sample(
        lambda make: (
            *(make(16, 256, dtype=torch.float16) for _ in range(3)),
            *(make(256, 256, dtype=torch.float16, low=-0.1, high=0.1) for _ in range(3)),
            make(1, 16, 16, 16, dtype=torch.float16),
            make(256, 256, dtype=torch.float16, low=-0.1, high=0.1),
            *(make(256, dtype=torch.float16) for _ in range(4)),
            None,
            16,
            16,
            16,
            16,
            0.0,
            True,
        )
    ),
]


@npu_op(
    "npu_multi_head_attention_backward(Tensor query, Tensor key, Tensor value, Tensor "
    "query_weight, Tensor key_weight, Tensor value_weight, Tensor out_proj_weight, Tensor? "
    "query_bias, Tensor? key_bias, Tensor? value_bias, Tensor? out_proj_bias, Tensor "
    "query_res, Tensor key_res, Tensor value_res, Tensor attn_scores, Tensor attn_res, "
    "Tensor context, Tensor y_grad, Tensor dropout_mask, int attn_head_num, int "
    "attn_dim_per_head, int src_len, int tgt_len, float dropout_prob, bool "
    "softmax_use_float) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, "
    "Tensor, Tensor, Tensor)",
    core="MIX_AIC",
    aclop=True,
)
def npu_multi_head_attention_backward(
    query,
    key,
    value,
    query_weight,
    key_weight,
    value_weight,
    out_proj_weight,
    query_bias,
    key_bias,
    value_bias,
    out_proj_bias,
    query_res,
    key_res,
    value_res,
    attn_scores,
    attn_res,
    context,
    y_grad,
    dropout_mask,
    attn_head_num,
    attn_dim_per_head,
    tgt_len,
    dropout_prob,
):
    """Gradients of `npu_multi_head_attention`, from its results.

    Returns:
        Gradients of query_weight, key_weight, value_weight, out_proj_weight (H, H), of query, key,
        value, and of the four biases, each (1, H); 0 for a bias that is None.
    """

    def rounded(x):  # each product is rounded, as the layer's own results are
        return wide(x.to(query.dtype))

    dy = wide(y_grad)
    dcontext = rounded(_split(dy @ wide(out_proj_weight), attn_head_num, tgt_len))
    dv = rounded(_merge(wide(attn_res).mT @ dcontext))
    dattn = rounded(dcontext @ wide(value_res).mT)
    if dropout_prob > 0:
        kept = unpacked(dropout_mask, dattn.numel()).view(dattn.shape)
        dattn = dattn * kept / (1 - dropout_prob)
    weights = wide(attn_scores)
    dscores = rounded(weights * (dattn - (dattn * weights).sum(-1, keepdim=True)))
    dq = rounded(_merge(dscores @ wide(key_res)) * attn_dim_per_head**-0.5)
    dk = rounded(_merge(dscores.mT @ wide(query_res)))
    inputs = ((dq, query, query_weight), (dk, key, key_weight), (dv, value, value_weight))
    dweights = [g.mT @ wide(x) for g, x, _ in inputs] + [dy.mT @ wide(context)]
    dinputs = [g @ wide(w) for g, _, w in inputs]
    biases = (query_bias, key_bias, value_bias, out_proj_bias)
    dbiases = [
        torch.zeros_like(g[:1]) if bias is None else g.sum(0, keepdim=True)
        for g, bias in zip((dq, dk, dv, dy), biases, strict=True)
    ]
    return tuple(g.to(query.dtype) for g in (*dweights, *dinputs, *dbiases))


@npu_multi_head_attention_backward.check
def _(
    query,
    key,
    value,
    query_weight,
    key_weight,
    value_weight,
    out_proj_weight,
    query_bias,
    key_bias,
    value_bias,
    out_proj_bias,
    query_res,
    key_res,
    value_res,
    attn_scores,
    attn_res,
    context,
    y_grad,
    dropout_mask,
    attn_head_num,
    attn_dim_per_head,
    src_len,
    tgt_len,
    dropout_prob,
    softmax_use_float,
):
    weights = (query_weight, key_weight, value_weight, out_proj_weight)
    biases = (query_bias, key_bias, value_bias, out_proj_bias)
    _check_sizes(query, key, value, weights, biases, attn_head_num, attn_dim_per_head, src_len,
                 tgt_len, dropout_prob)  # fmt: skip
    batch = query.shape[0] // tgt_len
    must.shape("y_grad", y_grad, tuple(query.shape))
    must.shape("context", context, tuple(query.shape))
    must.shape("query_res", query_res, (batch, attn_head_num, tgt_len, attn_dim_per_head))
    for name, tensor in (("key_res", key_res), ("value_res", value_res)):
        must.shape(name, tensor, (batch, attn_head_num, src_len, attn_dim_per_head))
    for name, tensor in (("attn_scores", attn_scores), ("attn_res", attn_res)):
        must.shape(name, tensor, (batch, attn_head_num, tgt_len, src_len))
    must.dtype("attn_scores", attn_scores, torch.float32 if softmax_use_float else torch.float16)
    _check_mask(dropout_mask, (batch, attn_head_num, tgt_len, src_len), dropout_prob)


npu_multi_head_attention_backward.samples = [
    Sample(
        lambda make: (
            *(make(16, 256, dtype=torch.float16) for _ in range(3)),
            *(make(256, 256, dtype=torch.float16, low=-0.1, high=0.1) for _ in range(4)),
            *(None, None, None, None),
            *(make(1, 16, 16, 16, dtype=torch.float16) for _ in range(3)),
            make(1, 16, 16, 16, low=0),
            make(1, 16, 16, 16, dtype=torch.float16, low=0),
            *(make(16, 256, dtype=torch.float16) for _ in range(2)),
            make(512, dtype=torch.uint8, low=0, high=255),
            *(16, 16, 16, 16, 0.0, True),
        )
    ),
]
