"""npu_quant_fusion_attention and its gradient: attention for training in 8-bit floats."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops.attention import _layouts

_FORMATS = ("hifloat8", "float8_e4m3fn", "float8_e5m2")
_LAYOUTS = ("BSH", "SBH", "BSND", "BNSD")

#: tokens that share a factor in the forward pass: of query, key and value
_Q_BLOCK, _K_BLOCK, _V_BLOCK = 128, 256, 512
#: and in the gradient, of every tensor
_GRAD_BLOCK = 512
#: keys whose weights are rounded against one running maximum
_STEP = 512


def _format(query: torch.Tensor, query_dtype: int | None) -> str:
    name = _dtypes.name(query.dtype if query_dtype is None else query_dtype)
    return name or str(query.dtype)


def _values(tensor, name, layout, heads):
    """(B, N, S, D) in fp32."""
    return _layouts.heads_first(_formats.decode(tensor, name).float(), layout, heads)


def _heads(query, key, layout, head_num):
    return _layouts.head_counts(query, key, layout, head_num)


def _spread(factors, size, length):
    """(B, N, blocks, 1) as (B, N, length, 1)."""
    return factors.repeat_interleave(size, 2)[:, :, :length]


def _rounded(x, name):
    return _formats.decode(_formats.encode(x, name), name).float()


def _of_groups(tensor, group):
    """The heads of key and value as often as query has them."""
    return tensor.repeat_interleave(group, 1) if group > 1 else tensor


def _laid_out(tensor, layout):
    """(B, N, S, D) back in the layout."""
    if layout == "BNSD":
        return tensor
    axes = (2, 0, 1, 3) if layout == "SBH" else (0, 2, 1, 3)
    tensor = tensor.permute(axes)
    return tensor.flatten(2) if layout in ("BSH", "SBH") else tensor


@npu_op(
    "npu_quant_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, *, "
    "Tensor d_scale_q, Tensor d_scale_k, Tensor d_scale_v, Tensor? p_scale=None, float scale=1., "
    "int? query_dtype=None) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)",
    chips=("A5",),
    output_differentiability=(False,) * 7,
    ge="FlashAttentionScore",
    core="MIX_AIC",
    product=True,
)
def npu_quant_fusion_attention(
    query,
    key,
    value,
    head_num,
    input_layout,
    d_scale_q,
    d_scale_k,
    d_scale_v,
    p_scale,
    scale,
    query_dtype,
):
    r"""Attention for training whose query, key, value and weights are 8-bit floats.

    $$ P = p\_scale \cdot \mathrm{softmax}(scale \cdot (d_q d_k) Q K^T), \quad
       O = \mathrm{round}_8(P) (d_v V) / p\_scale $$

    As on the card, the scores of hifloat8 are float16, and the weights are rounded 512 keys at a time, against the
    largest score so far.

    Args:
        query: in the layout that `input_layout` names, hifloat8 (uint8, with `query_dtype`), float8_e4m3fn or
            float8_e5m2.
        key, value: the same format and layout.
        head_num: the heads of query.
        input_layout: BSH, SBH, BSND or BNSD.
        d_scale_q: (B, N, ceil(Sq / 128), 1), float32: the factor of 128 rows of query.
        d_scale_k: (B, Nkv, ceil(Skv / 256), 1), float32.
        d_scale_v: (B, Nkv, ceil(Skv / 512), 1), float32.
        p_scale: (1,), float32: the factor of the weights before they are rounded; used with hifloat8 alone. Default: 1.
        scale: the factor of the scores.
        query_dtype: `torch_npu.hifloat8` where uint8 tensors hold that format.

    Returns:
        The attention in bfloat16, softmax_max and softmax_sum (B, N, Sq, 1) in float32, an empty tensor, and three
        zeros. The maxima are those of the scores less log(p_scale), and the sums are p_scale times those of plain
        exponentials.

    Differs from upstream: CANN takes hifloat8 in BSND of two sizes alone, (1, 57600, 5, 128) and (1, 7200, 40, 128).
    """
    name = _format(query, query_dtype)
    heads, key_heads = _heads(query, key, input_layout, head_num)
    group = heads // key_heads
    q = _values(query, name, input_layout, heads)
    k = _of_groups(_values(key, name, input_layout, key_heads), group)
    v = _of_groups(_values(value, name, input_layout, key_heads), group)
    small = name == "hifloat8"
    factor_q = _spread(d_scale_q, _Q_BLOCK, q.shape[2]) * scale
    factor_k = _of_groups(_spread(d_scale_k, _K_BLOCK, k.shape[2]), group)
    log_p = _log(p_scale) if small else torch.zeros(())
    peak = q.new_full((*q.shape[:3], 1), -torch.inf)
    total = torch.zeros_like(peak)
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    for start in range(0, k.shape[2], _STEP):
        end = min(start + _STEP, k.shape[2])
        scores = (q @ k[:, :, start:end].mT) * (factor_q * factor_k[:, :, start:end].mT)
        scores = scores.half().float() if small else scores
        top = scores.amax(-1, keepdim=True) - log_p
        top = torch.maximum(peak, top.half().float() if small else top)
        weights = (scores - top).exp()
        fade = (peak - top).exp()
        total = total * fade + weights.sum(-1, keepdim=True)
        of_v = _of_groups(d_scale_v[:, :, start // _V_BLOCK, None], group)
        out = out * fade + _rounded(weights, name) @ v[:, :, start:end] * of_v
        peak = top
    out = _laid_out((out / total).bfloat16(), input_layout).contiguous()
    return out, peak, total, out.new_empty(0), 0, 0, 0


def _log(p_scale):
    """The logarithm of the factor, both in float16."""
    return torch.zeros(()) if p_scale is None else p_scale.half().float().log().half().float()


@npu_quant_fusion_attention.meta
def _(query, key, value, head_num, input_layout):
    heads, key_heads = _heads(query, key, input_layout, head_num)
    size = value.shape[-1] // key_heads if input_layout in ("BSH", "SBH") else value.shape[-1]
    shape = _layouts.output_shape(query, input_layout, heads, size)
    stats = [*_layouts.stats_shape(query, input_layout, heads)[:3], 1]
    out = query.new_empty(shape, dtype=torch.bfloat16)
    peak, total = (query.new_empty(stats, dtype=torch.float32) for _ in range(2))
    return out, peak, total, out.new_empty(0), 0, 0, 0


def _check(query, key, value, head_num, input_layout, query_dtype):
    """What both directions ask of query, key and value; gives the sizes B, N, Nkv, Sq, Skv."""
    name = _format(query, query_dtype)
    expected = f"of format {must.one_of(_FORMATS)}"
    must.hold(name in _FORMATS, "query", expected, name, ErrCode.TYPE)
    must.dtype("query", query, _dtypes.storage(name) or torch.uint8)
    must.choice("input_layout", input_layout, _LAYOUTS)
    must.hold(head_num > 0, "head_num", "above 0", head_num, ErrCode.PARAM)
    dims = 3 if input_layout in ("BSH", "SBH") else 4
    for label, tensor in (("query", query), ("key", key), ("value", value)):
        must.same_dtype(label, tensor, "query", query)
        must.ndim(label, tensor, dims)
    if dims == 3:
        width = query.shape[2]
        must.hold(width and width % head_num == 0, "query", f"a multiple of {head_num} wide", width)
        size = width // head_num
        ok = key.shape[2] and key.shape[2] % size == 0
        must.hold(ok, "key", f"of heads of size {size}", tuple(key.shape))
    heads, key_heads = _heads(query, key, input_layout, head_num)
    must.hold(heads == head_num, "head_num", f"the heads of query ({heads})", head_num)
    ok = key_heads > 0 and heads % key_heads == 0
    must.hold(ok, "key", f"of heads that divide those of query ({heads})", key_heads)
    counts = (heads, key_heads, key_heads)
    q_shape, k_shape, v_shape = (
        tuple(_layouts.heads_first(t, input_layout, n).shape)
        for t, n in zip((query, key, value), counts, strict=True)
    )
    batch, _, rows, size = q_shape
    columns = k_shape[2]
    must.hold(columns > 0, "key", "of at least one token", columns)
    ok = k_shape == (batch, key_heads, columns, size)
    must.hold(ok, "key", f"of batch {batch} and head size {size}", tuple(key.shape))
    ok = v_shape[:3] == k_shape[:3] and v_shape[3] <= size
    expected = f"of the batch, heads and tokens of key, and of head size up to {size}"
    must.hold(ok, "value", expected, tuple(value.shape))
    return batch, heads, key_heads, rows, columns


def _check_factors(pairs):
    for name, tensor, batch, heads, length, size in pairs:
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, (batch, heads, -(-length // size), 1))


def _check_scalar(name, tensor):
    must.dtype(name, tensor, torch.float32)
    must.shape(name, tensor, (1,))


@npu_quant_fusion_attention.check
def _(
    query,
    key,
    value,
    head_num,
    input_layout,
    d_scale_q,
    d_scale_k,
    d_scale_v,
    p_scale,
    query_dtype,
):
    batch, heads, key_heads, rows, columns = _check(
        query, key, value, head_num, input_layout, query_dtype
    )
    _check_factors(
        (
            ("d_scale_q", d_scale_q, batch, heads, rows, _Q_BLOCK),
            ("d_scale_k", d_scale_k, batch, key_heads, columns, _K_BLOCK),
            ("d_scale_v", d_scale_v, batch, key_heads, columns, _V_BLOCK),
        )
    )
    _check_scalar("p_scale", p_scale)


@npu_op(
    "npu_quant_fusion_attention_backward(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, "
    "str input_layout, Tensor d_scale_q, Tensor d_scale_k, Tensor d_scale_v, Tensor d_scale_dy, *, "
    "Tensor? p_scale=None, Tensor? ds_scale=None, Tensor? softmax_max=None, Tensor? softmax_sum=None, "
    "Tensor? attention_in=None, float scale_value=1., int? query_dtype=None) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    chips=("A5",),
    ge="FlashAttentionScoreGrad",
    core="MIX_AIC",
    product=True,
)
def npu_quant_fusion_attention_backward(
    query,
    key,
    value,
    dy,
    head_num,
    input_layout,
    d_scale_q,
    d_scale_k,
    d_scale_v,
    d_scale_dy,
    p_scale,
    ds_scale,
    softmax_max,
    softmax_sum,
    attention_in,
    scale_value,
    query_dtype,
):
    r"""The gradients of attention in 8-bit floats.

    With the weights $P = \exp(scale\,(d_q d_k) Q K^T - max) / sum$ and $D = \sum_d dO \cdot O$:

    $$ dS = P (dO V^T - D), \quad dV = P_8^T dO / p\_scale, \quad dQ = scale\, dS_8 K / ds\_scale, \quad
       dK = scale\, dS_8^T Q / ds\_scale $$

    where $P_8$ and $dS_8$ are p_scale P and ds_scale dS, rounded to the format of query.

    Args:
        query: as in the forward operator, like key and value.
        key: the same format and layout.
        value: the same format and layout.
        dy: the gradient of the attention in the format of query and the shape of the attention.
        head_num: the heads of query.
        input_layout: BSH, SBH, BSND or BNSD.
        d_scale_q: (B, N, ceil(Sq / 512), 1), float32: the factor of 512 rows of query.
        d_scale_k: (B, Nkv, ceil(Skv / 512), 1), float32.
        d_scale_v: (B, Nkv, ceil(Skv / 512), 1), float32.
        d_scale_dy: (B, N, ceil(Sq / 512), 1), float32.
        p_scale: (1,), float32: the factor of the weights before they are rounded. Default: 1.
        ds_scale: (1,), float32: that of the gradient of the scores. Default: 1.
        softmax_max: (B, N, Sq, 1), float32; required.
        softmax_sum: (B, N, Sq, 1), float32; required.
        attention_in: the attention, bfloat16; required.
        scale_value: the factor of the scores.
        query_dtype: `torch_npu.hifloat8` where uint8 tensors hold that format.

    Returns:
        The gradients of query, key and value in bfloat16, then four empty tensors.

    Differs from upstream: the last four results are undefined there but for the gradient of the sink, which is empty.
    """
    name = _format(query, query_dtype)
    heads, key_heads = _heads(query, key, input_layout, head_num)
    group = heads // key_heads
    sizes = ((query, heads), (key, key_heads), (value, key_heads), (dy, heads))
    q, k, v, g = (_values(t, name, input_layout, n) for t, n in sizes)
    factors = ((d_scale_q, q), (d_scale_k, k), (d_scale_v, v), (d_scale_dy, g))
    q, k, v, g = (t * _spread(f, _GRAD_BLOCK, t.shape[2]) for f, t in factors)
    k, v = _of_groups(k, group), _of_groups(v, group)
    out = _layouts.heads_first(attention_in.float(), input_layout, heads)
    of_p = 1.0 if p_scale is None else float(p_scale)
    of_ds = 1.0 if ds_scale is None else float(ds_scale)
    inner = (g * out).sum(-1, keepdim=True)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for start in range(0, q.shape[2], _STEP):
        rows = slice(start, start + _STEP)
        scores = (q[:, :, rows] @ k.mT) * scale_value
        weights = (scores - softmax_max[:, :, rows]).exp() / softmax_sum[:, :, rows]
        of_scores = weights * (g[:, :, rows] @ v.mT - inner[:, :, rows])
        dv += _rounded(weights * of_p, name).mT @ g[:, :, rows] / of_p
        small = _rounded(of_scores * of_ds, name) * (scale_value / of_ds)
        dq[:, :, rows] = small @ k
        dk += small.mT @ q[:, :, rows]
    made = []
    for grad, count in ((dq, heads), (dk, key_heads), (dv, key_heads)):
        if count != heads:
            grad = grad.unflatten(1, (count, group)).sum(2)
        made.append(_laid_out(grad.bfloat16(), input_layout).contiguous())
    return *made, *_nothing(made[0])


def _nothing(like):
    """pse, the two rope parts, and the sink, which is float32."""
    return *(like.new_empty(0) for _ in range(3)), like.new_empty(0, dtype=torch.float32)


@npu_quant_fusion_attention_backward.meta
def _(query, key, value):
    made = [t.new_empty(t.shape, dtype=torch.bfloat16) for t in (query, key, value)]
    return *made, *_nothing(made[0])


@npu_quant_fusion_attention_backward.check
def _(
    query,
    key,
    value,
    dy,
    head_num,
    input_layout,
    d_scale_q,
    d_scale_k,
    d_scale_v,
    d_scale_dy,
    p_scale,
    ds_scale,
    softmax_max,
    softmax_sum,
    attention_in,
    query_dtype,
):
    batch, heads, key_heads, rows, columns = _check(
        query, key, value, head_num, input_layout, query_dtype
    )
    _check_factors(
        (
            ("d_scale_q", d_scale_q, batch, heads, rows, _GRAD_BLOCK),
            ("d_scale_k", d_scale_k, batch, key_heads, columns, _GRAD_BLOCK),
            ("d_scale_v", d_scale_v, batch, key_heads, columns, _GRAD_BLOCK),
            ("d_scale_dy", d_scale_dy, batch, heads, rows, _GRAD_BLOCK),
        )
    )
    _check_scalar("p_scale", p_scale)
    _check_scalar("ds_scale", ds_scale)
    size = value.shape[-1] // key_heads if value.dim() == 3 else value.shape[-1]
    shape = _layouts.output_shape(query, input_layout, heads, size)
    must.same_dtype("dy", dy, "query", query)
    must.shape("dy", dy, shape)
    when = "to compute the gradients"
    for label, tensor in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        given = must.present(label, tensor, when)
        must.dtype(label, given, torch.float32)
        must.shape(label, given, (batch, heads, rows, 1))
    must.dtype("attention_in", must.present("attention_in", attention_in, when), torch.bfloat16)
    must.shape("attention_in", attention_in, shape)


_HIFLOAT8 = 290


def _bytes(make, *shape, **options):
    """Bytes of hifloat8 that are numbers of moderate size."""
    return make(*shape, dtype=torch.uint8, low=0, high=72, **options)


def _forward(make, rows, columns, layout="BSND"):
    axes = (1, 3, rows, 16) if layout == "BNSD" else (1, rows, 3, 16)
    others = (1, 3, columns, 16) if layout == "BNSD" else (1, columns, 3, 16)
    return (_bytes(make, *axes), _bytes(make, *others, seed=1), _bytes(make, *others, seed=2))


def _factors(make, length, size, **options):
    return make(1, 3, -(-length // size), 1, low=0.01, high=0.03, **options)


npu_quant_fusion_attention.samples = [
    Sample(
        lambda make: (*_forward(make, 5, 9), 3, "BSND"),
        lambda make: {
            "d_scale_q": _factors(make, 5, _Q_BLOCK),
            "d_scale_k": _factors(make, 9, _K_BLOCK, seed=3),
            "d_scale_v": _factors(make, 9, _V_BLOCK, seed=4),
            "p_scale": make(1, low=8, high=16),
            "scale": 0.25,
            "query_dtype": _HIFLOAT8,
        },
    ),
    Sample(
        lambda make: (*_forward(make, 130, 300, "BNSD"), 3, "BNSD"),
        lambda make: {
            "d_scale_q": _factors(make, 130, _Q_BLOCK),
            "d_scale_k": _factors(make, 300, _K_BLOCK, seed=3),
            "d_scale_v": _factors(make, 300, _V_BLOCK, seed=4),
            "scale": 0.25,
            "query_dtype": _HIFLOAT8,
        },
    ),
]
npu_quant_fusion_attention_backward.samples = [
    Sample(
        lambda make: (
            *_forward(make, 5, 9),
            _bytes(make, 1, 5, 3, 16, seed=5),
            3,
            "BSND",
            _factors(make, 5, _GRAD_BLOCK),
            _factors(make, 9, _GRAD_BLOCK, seed=3),
            _factors(make, 9, _GRAD_BLOCK, seed=4),
            _factors(make, 5, _GRAD_BLOCK, seed=6),
        ),
        lambda make: {
            "p_scale": make(1, low=8, high=16),
            "ds_scale": make(1, low=2, high=4),
            "softmax_max": make(1, 3, 5, 1),
            "softmax_sum": make(1, 3, 5, 1, low=5, high=9),
            "attention_in": make(1, 5, 3, 16, dtype=torch.bfloat16),
            "scale_value": 0.25,
            "query_dtype": _HIFLOAT8,
        },
    ),
]
