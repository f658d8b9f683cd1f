"""npu_sparse_flash_attention: latent attention over chosen keys."""

from __future__ import annotations

import math

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import _sparse, _sparse_attend
from torch_npu.ops.attention import _sparse_rules as rules
from torch_npu.ops.attention._sparse_samples import half, ropes
from torch_npu.ops.attention.npu_sparse_flash_attention_grad import (
    npu_sparse_flash_attention_grad,
)

ABSORB = 2


@npu_op(
    "npu_sparse_flash_attention(Tensor query, Tensor key, Tensor value, Tensor sparse_indices, "
    "float scale_value, *, Tensor? block_table=None, Tensor? actual_seq_lengths_query=None, "
    "Tensor? actual_seq_lengths_kv=None, Tensor? query_rope=None, Tensor? key_rope=None, "
    'int sparse_block_size=1, str layout_query="BSND", str layout_kv="BSND", int sparse_mode=3, '
    "int pre_tokens=9223372036854775807, int next_tokens=9223372036854775807, "
    "int attention_mode=0, bool return_softmax_lse=False, Tensor? sinks=None) "
    "-> (Tensor, Tensor, Tensor)",
    output_differentiability=(True, False, False),
    core="MIX_AIC",
    product=True,
)
def npu_sparse_flash_attention(
    query,
    key,
    value,
    sparse_indices,
    scale_value,
    block_table,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    query_rope,
    key_rope,
    sparse_block_size,
    layout_query,
    layout_kv,
    sparse_mode,
    return_softmax_lse,
    sinks,
):
    r"""Attention of each query over the keys that its `sparse_indices` choose, in the absorbed form of MLA.

    $$ out = \mathrm{softmax}(scale \cdot [q, q_r] [\tilde K, \tilde K_r]^T) \tilde V $$

    Index b chooses the tokens from b * `sparse_block_size` on; the first negative index ends a row. Queries without
    keys give 0.

    Args:
        query: (B, S1, N, 512) or TND (T1, N, 512); bfloat16 or float16; N a power of two up to 128, any up to 128 on
            Ascend950.
        key: (B, S2, 1, 512), TND (T2, 1, 512) or PA_BSND (blocks, block, 1, 512).
        value: like `key`.
        sparse_indices: (B, S1, 1, n) or (T1, 1, n), int32.
        scale_value: factor of the scores.
        block_table: (B, blocks), int32, in PA_BSND.
        actual_seq_lengths_query: int32; tokens of each sequence, sums of them in TND, where it is needed.
        actual_seq_lengths_kv: the same for keys; needed in TND and PA_BSND, in which it holds no sums.
        query_rope: (..., N, 64), needed.
        key_rope: (..., 1, 64), needed.
        sparse_block_size: tokens of an index, a power of two up to 128; 1 on Ascend950. Divides the block in PA_BSND.
        layout_query: 'BSND' or 'TND'.
        layout_kv: 'PA_BSND' or `layout_query`.
        sparse_mode: 0, or 3 for a causal edge at the lower right corner.
        pre_tokens: left at its default.
        next_tokens: left at its default.
        attention_mode: 2, the absorbed form.
        return_softmax_lse: whether the maxima and sums are returned, not in PA_BSND.
        sinks: (N,), float32, Ascend950: a score that each head's softmax also counts; not in PA_BSND.

    Returns:
        The attention, like `query`; the maxima and the sums of the scores, (B, 1, S1, N) or (1, T1, N), float32,
        empty without `return_softmax_lse`.
    """
    out, peaks, sums = _results(query, key, return_softmax_lse)
    out.zero_()
    rows = torch.cat((_sparse.tokens(query), _sparse.tokens(query_rope)), -1)
    places = _places(sparse_indices)
    target = _sparse.tokens(out)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_kv)
    for span in _sparse.spans(query, key, layout_query, layout_kv, *lengths):
        own = slice(span.start, span.start + span.rows)
        source = tuple(
            _sparse.keys(t, span, layout_kv, block_table)[:, 0] for t in (key, key_rope, value)
        )
        keys, values = wide(torch.cat(source[:2], -1)), wide(source[2])
        if span.columns == 0:
            continue
        blocks = _sparse_attend.parts(
            span, sparse_mode, places[own], sparse_block_size, keys.shape[1]
        )
        for part, place, unseen in blocks:
            found, peak, total = _sparse_attend.forward(
                wide(rows[own]), keys, values, part, place, unseen, scale_value, sinks
            )
            where = slice(span.start + part.start, span.start + part.stop)
            target[where] = found.to(out.dtype)
            if return_softmax_lse:
                _by_token(peaks, query)[where] = peak
                _by_token(sums, query)[where] = total
    return out, peaks, sums


@npu_sparse_flash_attention.native
def _(
    query,
    key,
    value,
    sparse_indices,
    scale_value,
    block_table,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    query_rope,
    key_rope,
    sparse_block_size,
    layout_query,
    layout_kv,
    sparse_mode,
    return_softmax_lse,
    sinks,
):
    out, peaks, sums = _results(query, key, return_softmax_lse)
    rows, turned = _sparse.tokens(query), _sparse.tokens(query_rope)
    target, heads = _sparse.tokens(out), query.shape[-2]
    spans = _sparse.spans(
        query, key, layout_query, layout_kv, actual_seq_lengths_query, actual_seq_lengths_kv
    )
    places = _places(sparse_indices)
    chosen, kept = _sparse_attend.chosen_rows(
        spans, rows.shape[0], sparse_mode, places, sparse_block_size, key, layout_kv, block_table
    )
    keys, ropes, values = (_sparse.tokens(t)[:, 0] for t in (key, key_rope, value))
    for part in _sparse.steps(rows.shape[0], heads * chosen.shape[1]):
        width = max(1, int(kept[part].max()))
        own = chosen[part, :width]
        bias = wide(turned[part]).mul(scale_value) @ wide(ropes[own]).mT
        found = _sparse_attend.natively(
            rows[part], keys, values, own, kept[part], scale_value, sinks, bias
        )
        target[part] = found[0]
        if return_softmax_lse:
            _by_token(peaks, query)[part], _by_token(sums, query)[part] = found[1:]
    return out, peaks, sums


def _places(sparse_indices):
    """The positions of each token, in rows; of none at all one that means nothing."""
    if sparse_indices.shape[-1] == 0:
        return sparse_indices.new_full((math.prod(sparse_indices.shape[:-1]), 1), -1)
    return sparse_indices.flatten(0, -2)


def _by_token(statistics, query):
    """A view (tokens, N) of maxima or sums (B, 1, S, N) or (1, T, N)."""
    return statistics.view(-1, query.shape[-2])


def _results(query, key, return_softmax_lse):
    shape: tuple[int, ...]
    if not return_softmax_lse:
        shape = (0,)
    elif query.dim() == 3:
        shape = (1, query.shape[0], query.shape[1])
    else:
        shape = (query.shape[0], 1, query.shape[1], query.shape[2])
    new = [query.new_zeros(shape, dtype=torch.float32) for _ in range(2)]
    return query.new_empty(query.shape), *new


@npu_sparse_flash_attention.meta
def _(query, key, return_softmax_lse):
    return _results(query, key, return_softmax_lse)


@npu_sparse_flash_attention.check
def _(
    query,
    key,
    value,
    sparse_indices,
    block_table,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    query_rope,
    key_rope,
    sparse_block_size,
    layout_query,
    layout_kv,
    sparse_mode,
    pre_tokens,
    next_tokens,
    attention_mode,
    return_softmax_lse,
    sinks,
):
    _sparse.check_family("query", "A2", "A3", "A5")
    must.dtype("query", query, torch.float16, torch.bfloat16)
    named = {"key": key, "value": value, "query_rope": query_rope, "key_rope": key_rope}
    must.choice("attention_mode", attention_mode, (ABSORB,))
    must.present("query_rope", query_rope, "with attention_mode 2")
    must.present("key_rope", key_rope, "with attention_mode 2")
    for name, tensor in named.items():
        must.same_dtype(name, tensor, "query", query)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_kv, block_table)
    names = ("actual_seq_lengths_query", "actual_seq_lengths_kv", "layout_query", "layout_kv")
    _sparse.check_layouts(query, key, layout_query, layout_kv, *lengths, names)
    rules.heads(query.shape[-2])
    must.hold(query.shape[-1] == 512, "query", "of head size 512", query.shape[-1])
    must.hold(tuple(key.shape[-2:]) == (1, 512), "key", "of 1 head of 512", tuple(key.shape))
    must.shape("value", value, tuple(key.shape))
    must.shape("query_rope", query_rope, (*query.shape[:-1], 64))
    must.shape("key_rope", key_rope, (*key.shape[:-1], 64))
    rules.indices(query, key, sparse_indices, sparse_block_size, layout_kv, 128, none=True)
    must.choice("sparse_mode", sparse_mode, (0, 3))
    _sparse.check_tokens_limits(pre_tokens, next_tokens)
    if return_softmax_lse:
        paged = layout_kv == "PA_BSND"
        expected = "False with layout_kv 'PA_BSND'"
        must.hold(not paged, "return_softmax_lse", expected, return_softmax_lse)
    rules.sinks(sinks, query)
    paged = layout_kv == "PA_BSND"
    must.hold(sinks is None or not paged, "sinks", "None with layout_kv 'PA_BSND'", "a tensor")


@npu_sparse_flash_attention.backward
def _(
    grad,
    *,
    query,
    key,
    value,
    sparse_indices,
    scale_value,
    sparse_block_size,
    query_rope,
    key_rope,
    actual_seq_lengths_query,
    actual_seq_lengths_kv,
    layout_query,
    sparse_mode,
    pre_tokens,
    next_tokens,
    attention_mode,
    return_softmax_lse,
    result0,
    result1,
    result2,
):
    if not return_softmax_lse:
        raise RuntimeError("npu_sparse_flash_attention: gradients need return_softmax_lse=True")
    names = ("query", "key", "value", "query_rope", "key_rope")
    found = npu_sparse_flash_attention_grad(
        query,
        key,
        value,
        sparse_indices,
        grad,
        result0,
        result1,
        result2,
        scale_value,
        sparse_block_size,
        query_rope,
        key_rope,
        actual_seq_lengths_query,
        actual_seq_lengths_kv,
        layout_query,
        sparse_mode,
        pre_tokens,
        next_tokens,
        attention_mode,
    )
    return dict(zip(names, found, strict=True))


npu_sparse_flash_attention.samples = [
    Sample(
        lambda make: (
            half(make, 2, 3, 4, 512),
            half(make, 2, 9, 1, 512),
            half(make, 2, 9, 1, 512, seed=2),
            make(2, 3, 1, 5, dtype=torch.int32, low=0, high=9),
            0.05,
        ),
        lambda make: ropes(make, (2, 3, 4), (2, 9, 1)) | {"return_softmax_lse": True},
    ),
    Sample(
        lambda make: (
            half(make, 4, 2, 512),
            half(make, 4, 16, 1, 512),
            half(make, 4, 16, 1, 512, seed=2),
            make(4, 1, 3, dtype=torch.int32, low=-1, high=5),
            0.05,
        ),
        lambda make: (
            ropes(make, (4, 2), (4, 16, 1))
            | {
                "actual_seq_lengths_query": make(2, dtype=torch.int32, low=2, high=3)
                .cumsum(0)
                .int(),
                "actual_seq_lengths_kv": make(2, dtype=torch.int32, low=12, high=20),
                "block_table": make(2, 2, dtype=torch.int32, low=0, high=4),
                "layout_query": "TND",
                "layout_kv": "PA_BSND",
                "sparse_block_size": 4,
            }
        ),
    ),
]
