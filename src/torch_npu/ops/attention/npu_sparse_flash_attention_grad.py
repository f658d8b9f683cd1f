"""npu_sparse_flash_attention_grad: the gradients of npu_sparse_flash_attention."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import _sparse, _sparse_attend
from torch_npu.ops.attention import _sparse_rules as rules
from torch_npu.ops.attention._sparse_samples import half, ropes

#: what it takes on Ascend950
HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)


@npu_op(
    "npu_sparse_flash_attention_grad(Tensor query, Tensor key, Tensor value, Tensor sparse_indices, "
    "Tensor d_out, Tensor out, Tensor softmax_max, Tensor softmax_sum, float scale_value, "
    "int sparse_block_size, Tensor? query_rope=None, Tensor? key_rope=None, "
    "Tensor? actual_seq_qlen=None, Tensor? actual_seq_kvlen=None, "
    'str? layout="BSND", int? sparse_mode=3, int? pre_tokens=9223372036854775807, '
    "int? next_tokens=9223372036854775807, int? attention_mode=0) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    core="MIX_AIC",
    product=True,
)
def npu_sparse_flash_attention_grad(
    query,
    key,
    value,
    sparse_indices,
    d_out,
    out,
    softmax_max,
    softmax_sum,
    scale_value,
    sparse_block_size,
    query_rope,
    key_rope,
    actual_seq_qlen,
    actual_seq_kvlen,
    layout,
    sparse_mode,
):
    """The gradients of `npu_sparse_flash_attention`.

    Args:
        query: as in the forward operator, BSND or TND.
        key: as in the forward operator.
        value: as in the forward operator.
        sparse_indices: as in the forward operator.
        d_out: the gradient of the attention.
        out: the attention.
        softmax_max: the maxima that the forward operator returned.
        softmax_sum: its sums.
        scale_value: factor of the scores.
        sparse_block_size: tokens of an index.
        query_rope: (..., N, 64).
        key_rope: (..., 1, 64).
        actual_seq_qlen: int32, tokens of each sequence, sums of them in TND.
        actual_seq_kvlen: the same for keys.
        layout: 'BSND' or 'TND'.
        sparse_mode: 0 or 3.
        pre_tokens: read nowhere.
        next_tokens: read nowhere.
        attention_mode: read nowhere.

    On Ascend950 each query has a multiple of 1024 indices up to 8192.

    Returns:
        The gradients of query, key, value, query_rope and key_rope; the last two are empty without ropes.
    """
    layout, sparse_mode = _sparse.default(layout, "BSND"), _sparse.default(sparse_mode, 3)
    rows, all_keys = _joined(query, query_rope), _joined(key, key_rope)
    all_values = wide(_sparse.tokens(value))
    places = sparse_indices.reshape(-1, sparse_indices.shape[-1])
    gradient, result = wide(_sparse.tokens(d_out)), wide(_sparse.tokens(out))
    peaks, sums = softmax_max.reshape(-1, query.shape[-2]), softmax_sum.reshape(-1, query.shape[-2])
    found = [torch.zeros_like(t) for t in (rows, all_keys, all_values)]
    for span in _sparse.spans(query, key, layout, layout, actual_seq_qlen, actual_seq_kvlen):
        if span.columns == 0:
            continue
        own = slice(span.start, span.start + span.rows)
        columns = slice(span.kv_start, span.kv_start + span.columns)
        of_span = (
            rows[own], all_keys[columns, 0], all_values[columns, 0], gradient[own], result[own],
            peaks[own], sums[own],
        )  # fmt: skip
        blocks = _sparse_attend.parts(
            span, sparse_mode, places[own], sparse_block_size, rows.shape[-1]
        )
        for part, place, unseen in blocks:
            of_query, of_key, of_value = _sparse_attend.backward(
                *of_span, part, place, unseen, scale_value
            )
            found[0][span.start + part.start : span.start + part.stop] = of_query
            found[1][columns, 0] += of_key
            found[2][columns, 0] += of_value
    size = query.shape[-1]
    pieces = (found[0][..., :size], found[1][..., :size], found[2])
    made = [
        g.reshape(t.shape).to(t.dtype) for g, t in zip(pieces, (query, key, value), strict=True)
    ]
    for g, t, like in ((found[0], query_rope, query), (found[1], key_rope, key)):
        made.append(like.new_empty(0) if t is None else g[..., size:].reshape(t.shape).to(t.dtype))
    return tuple(made)


def _joined(tensor, rope):
    rows = wide(_sparse.tokens(tensor))
    return rows if rope is None else torch.cat((rows, wide(_sparse.tokens(rope))), -1)


@npu_sparse_flash_attention_grad.meta
def _(query, key, value, query_rope, key_rope):
    new = [t.new_empty(t.shape) for t in (query, key, value)]
    for rope, like in ((query_rope, query), (key_rope, key)):
        new.append(like.new_empty(0 if rope is None else rope.shape))
    return tuple(new)


@npu_sparse_flash_attention_grad.check
def _(
    query,
    key,
    value,
    sparse_indices,
    d_out,
    out,
    softmax_max,
    softmax_sum,
    sparse_block_size,
    query_rope,
    key_rope,
    actual_seq_qlen,
    actual_seq_kvlen,
    layout,
    sparse_mode,
    pre_tokens,
    next_tokens,
    attention_mode,
):
    _sparse.check_family("query", "A2", "A3", "A5")
    must.dtype("query", query, torch.float16, torch.bfloat16)
    must.anything(attention_mode, pre_tokens, next_tokens)
    layout, sparse_mode = _sparse.default(layout, "BSND"), _sparse.default(sparse_mode, 3)
    named = {"key": key, "value": value, "d_out": d_out, "out": out}
    for name, tensor in named.items():
        must.same_dtype(name, tensor, "query", query)
    names = ("actual_seq_qlen", "actual_seq_kvlen", "layout", "layout")
    lengths = (actual_seq_qlen, actual_seq_kvlen, None)
    _sparse.check_layouts(query, key, layout, layout, *lengths, names)
    rules.heads(query.shape[-2], HEADS)
    size = query.shape[-1]
    must.hold(tuple(key.shape[-2:]) == (1, size), "key", f"of 1 head of {size}", tuple(key.shape))
    must.shape("value", value, (*key.shape[:-1], None))
    depth = value.shape[-1]
    must.hold(depth <= size, "value", f"of a head size up to {size}", depth)
    must.shape("d_out", d_out, (*query.shape[:-1], depth))
    must.shape("out", out, (*query.shape[:-1], depth))
    rules.indices(query, key, sparse_indices, sparse_block_size, layout, 128)
    if _sparse.new_chip():
        must.hold(size == 512, "query", "of head size 512", size)
        count = sparse_indices.shape[-1]
        fits = 0 < count <= 8192 and count % 1024 == 0
        must.hold(fits, "sparse_indices", "of a multiple of 1024 keys up to 8192", count)
    tokens = query.shape[:-2]
    shape = (1, *tokens) if query.dim() == 3 else (tokens[0], 1, tokens[1])
    for name, tensor in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, (*shape, query.shape[-2]))
    for name, rope, tensor in (("query_rope", query_rope, query), ("key_rope", key_rope, key)):
        must.same_dtype(name, rope, "query", query)
        must.shape(name, rope, (*tensor.shape[:-1], 64))
    must.choice("sparse_mode", sparse_mode, (0, 3))


npu_sparse_flash_attention_grad.samples = [
    Sample(
        lambda make: (
            half(make, 2, 3, 4, 512),
            half(make, 2, 9, 1, 512),
            half(make, 2, 9, 1, 512, seed=2),
            make(2, 3, 1, 5, dtype=torch.int32, low=0, high=9),
            half(make, 2, 3, 4, 512, seed=3),
            half(make, 2, 3, 4, 512, seed=4),
            make(2, 1, 3, 4, low=1, high=2),
            make(2, 1, 3, 4, low=3, high=5),
            0.05,
            1,
        ),
        lambda make: ropes(make, (2, 3, 4), (2, 9, 1)),
    ),
]
