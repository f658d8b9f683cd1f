"""npu_lightning_indexer and its gradient: the keys that matter most to each query."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops import _native
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import _indexer, _sparse


@npu_op(
    "npu_lightning_indexer(Tensor query, Tensor key, Tensor weights, *, "
    "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None, "
    'Tensor? block_table=None, str layout_query="BSND", str layout_key="BSND", '
    "int sparse_count=2048, int sparse_mode=3, int pre_tokens=9223372036854775807, "
    "int next_tokens=9223372036854775807, bool return_value=False) -> (Tensor, Tensor)",
    output_differentiability=(False, True),
    core="MIX_AIC",
    product=True,
)
def npu_lightning_indexer(
    query,
    key,
    weights,
    actual_seq_lengths_query,
    actual_seq_lengths_key,
    block_table,
    layout_query,
    layout_key,
    sparse_count,
    sparse_mode,
    return_value,
):
    r"""The positions of the keys with the highest scores for each query.

    $$ I = \mathrm{topk}\left(\sum_h w_h \mathrm{ReLU}(q_h k_j^T)\right) $$

    The best key comes first, of equal ones the earlier. Where a query sees fewer than `sparse_count` keys, the rest
    is -1.

    Args:
        query: (B, S1, N, 128), or TND (T1, N, 128); bfloat16 or float16, at most 64 heads (8, 16, 24, 32 or 64 on
            Ascend950).
        key: (B, S2, 1, 128), TND (T2, 1, 128), or PA_BSND (blocks, block, 1, 128) with a block of a multiple of 16
            tokens up to 1024; the dtype of `query`.
        weights: (B, S1, N) or (T1, N); the dtype of `query`, or float32 except on Ascend950.
        actual_seq_lengths_query: int32; tokens of each sequence, sums of them in TND, where it is needed.
        actual_seq_lengths_key: the same for keys; needed in TND and PA_BSND, in which it holds no sums.
        block_table: (B, blocks), int32, in PA_BSND.
        layout_query: 'BSND' or 'TND'.
        layout_key: 'PA_BSND' or `layout_query`.
        sparse_count: how many positions, 1 to 2048 or a multiple of 1024 up to 8192.
        sparse_mode: 0, or 3 for a causal edge at the lower right corner.
        pre_tokens: left at its default.
        next_tokens: left at its default.
        return_value: whether the scores are returned, not in PA_BSND.

    Returns:
        Positions (B, S1, 1, sparse_count) or (T1, 1, sparse_count), int32; scores of that shape in the dtype of
        `query`, empty without `return_value`.
    """
    indices, values = _results(query, key, layout_query, layout_key, sparse_count, return_value)
    indices.fill_(-1)
    values.zero_()
    rows = _sparse.tokens(query)
    factors = weights.reshape(-1, weights.shape[-1])
    lengths = (actual_seq_lengths_query, actual_seq_lengths_key)
    for span in _sparse.spans(query, key, layout_query, layout_key, *lengths):
        part = slice(span.start, span.start + span.rows)
        found = _sparse.keys(key, span, layout_key, block_table)
        _indexer.best(
            wide(rows[part]),
            wide(factors[part]),
            wide(found[:, 0]),
            span,
            sparse_mode,
            sparse_count,
            indices.view(-1, sparse_count)[part],
            values.view(-1, sparse_count)[part] if return_value else None,
        )
    return indices, values


@npu_lightning_indexer.native
def _(
    query,
    key,
    weights,
    actual_seq_lengths_query,
    actual_seq_lengths_key,
    block_table,
    layout_query,
    layout_key,
    sparse_count,
    sparse_mode,
    return_value,
):
    if not _native.fits(query, key):
        return NotImplemented
    indices, values = _results(query, key, layout_query, layout_key, sparse_count, return_value)
    indices.fill_(-1)
    values.zero_()
    rows, factors = _sparse.tokens(query), weights.reshape(-1, weights.shape[-1])
    lengths = (actual_seq_lengths_query, actual_seq_lengths_key)
    for span in _sparse.spans(query, key, layout_query, layout_key, *lengths):
        part = slice(span.start, span.start + span.rows)
        found = _sparse.keys(key, span, layout_key, block_table)[:, 0]
        place, score = _indexer.best_natively(
            rows[part], factors[part], found, span, sparse_mode, sparse_count
        )
        indices.view(-1, sparse_count)[part] = place
        if return_value:
            values.view(-1, sparse_count)[part] = score.to(values.dtype)
    return indices, values


def _results(query, key, layout_query, layout_key, sparse_count, return_value):
    heads = key.shape[1 if layout_key == "TND" else 2]
    shape = (*query.shape[:-2], heads, sparse_count)
    values = query.new_empty(shape if return_value else (0,))
    return query.new_empty(shape, dtype=torch.int32), values


@npu_lightning_indexer.meta
def _(query, key, layout_query, layout_key, sparse_count, return_value):
    return _results(query, key, layout_query, layout_key, sparse_count, return_value)


@npu_lightning_indexer.check
def _(
    query,
    key,
    weights,
    actual_seq_lengths_query,
    actual_seq_lengths_key,
    block_table,
    layout_query,
    layout_key,
    sparse_count,
    sparse_mode,
    pre_tokens,
    next_tokens,
    return_value,
):
    _sparse.check_family("query", "A2", "A3", "A5")
    must.dtype("query", query, torch.float16, torch.bfloat16)
    must.same_dtype("key", key, "query", query)
    kinds = (query.dtype,) if _sparse.new_chip() else (query.dtype, torch.float32)
    must.dtype("weights", weights, *kinds)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_key, block_table)
    names = ("actual_seq_lengths_query", "actual_seq_lengths_key", "layout_query", "layout_key")
    _sparse.check_layouts(query, key, layout_query, layout_key, *lengths, names)
    check_sizes(query, key, weights)
    fine = 1 <= sparse_count <= 2048 or (sparse_count <= 8192 and sparse_count % 1024 == 0)
    expected = "from 1 to 2048, or a multiple of 1024 up to 8192"
    must.hold(fine and sparse_count > 0, "sparse_count", expected, sparse_count)
    must.choice("sparse_mode", sparse_mode, (0, 3))
    _sparse.check_tokens_limits(pre_tokens, next_tokens)
    if return_value:
        paged = layout_key == "PA_BSND"
        must.hold(not paged, "return_value", "False with layout_key 'PA_BSND'", return_value)


def check_sizes(query, key, weights):
    """Heads of 128 elements, one key head, a weight for each query head."""
    heads = query.shape[-2]
    must.hold(query.shape[-1] == 128, "query", "of head size 128", query.shape[-1])
    must.hold(key.shape[-1] == 128, "key", "of head size 128", key.shape[-1])
    must.hold(key.shape[-2] == 1, "key", "of 1 head", key.shape[-2])
    if _sparse.new_chip():
        counts = (8, 16, 24, 32, 64)
        must.hold(heads in counts, "query", f"of {must.one_of(counts)} heads", heads)
    else:
        must.hold(heads <= 64, "query", "of at most 64 heads", heads)
    must.shape("weights", weights, tuple(query.shape[:-1]))


@npu_lightning_indexer.backward
def _(
    grad,
    *,
    query,
    key,
    weights,
    actual_seq_lengths_query,
    actual_seq_lengths_key,
    layout_query,
    sparse_mode,
    pre_tokens,
    next_tokens,
    result0,
):
    found = npu_lightning_indexer_grad(
        query,
        key,
        grad,
        result0,
        weights,
        actual_seq_lengths_query,
        actual_seq_lengths_key,
        layout_query,
        sparse_mode,
        pre_tokens,
        next_tokens,
    )
    return dict(zip(("query", "key", "weights"), found, strict=True))


@npu_op(
    "npu_lightning_indexer_grad(Tensor query, Tensor key, Tensor dy, Tensor sparse_indices, "
    "Tensor weights, Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None, "
    'str? layout="BSND", int? sparse_mode=3, int? pre_tokens=9223372036854775807, '
    "int? next_tokens=9223372036854775807) -> (Tensor, Tensor, Tensor)",
    core="MIX_AIC",
    product=True,
)
def npu_lightning_indexer_grad(
    query,
    key,
    dy,
    sparse_indices,
    weights,
    actual_seq_lengths_query,
    actual_seq_lengths_key,
    layout,
):
    r"""The gradients of the scores that `npu_lightning_indexer` returns.

    $$ \partial w_h = \sum_j dy_j \mathrm{ReLU}(q_h k_j), \quad
       \partial q_h = w_h \sum_j dy_j [q_h k_j > 0] k_j, \quad
       \partial k_j = \sum_{i, h} w_h dy_j [q_h k_j > 0] q_h $$

    Args:
        query: (B, S1, N, 128) or (T1, N, 128); float16 or bfloat16, which key, dy and weights share; at most 64 heads.
        key: (B, S2, 1, 128) or (T2, 1, 128).
        dy: the gradient of the scores, (B, S1, 1, n) or (T1, 1, n), n up to 2048; the dimension of 1 may be left out.
        sparse_indices: the positions of the scores, int32, -1 for none, as `dy`.
        weights: (B, S1, N) or (T1, N).
        actual_seq_lengths_query: as in npu_lightning_indexer.
        actual_seq_lengths_key: as in npu_lightning_indexer.
        layout: 'BSND' or 'TND'.
        sparse_mode: 0 or 3; the positions already respect it.
        pre_tokens: read nowhere.
        next_tokens: read nowhere.

    Returns:
        The gradients of query, key and weights.
    """
    layout = _sparse.default(layout, "BSND")
    rows, all_keys = wide(_sparse.tokens(query)), wide(_sparse.tokens(key))
    factors = wide(weights.reshape(-1, weights.shape[-1]))
    places = sparse_indices.reshape(-1, sparse_indices.shape[-1])
    gradients = wide(dy.reshape(-1, dy.shape[-1]))
    found = torch.zeros_like(rows), torch.zeros_like(all_keys), torch.zeros_like(factors)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_key)
    for span in _sparse.spans(query, key, layout, layout, *lengths):
        columns = slice(span.kv_start, span.kv_start + span.columns)
        own = all_keys[columns, 0]
        for part in _sparse.steps(span.rows, places.shape[1] * query.shape[-1]):
            part = slice(span.start + part.start, span.start + part.stop)
            of_query, of_weights, of_key = _indexer.derived(
                rows[part], factors[part], own, places[part], gradients[part], query.dtype
            )
            found[0][part] = of_query
            found[2][part] = of_weights
            found[1][columns, 0] += of_key
    inputs = (query, key, weights)
    return tuple(g.view(t.shape).to(t.dtype) for g, t in zip(found, inputs, strict=True))


@npu_lightning_indexer_grad.meta
def _(query, key, weights):
    return tuple(t.new_empty(t.shape) for t in (query, key, weights))


@npu_lightning_indexer_grad.check
def _(
    query,
    key,
    dy,
    sparse_indices,
    weights,
    actual_seq_lengths_query,
    actual_seq_lengths_key,
    layout,
    sparse_mode,
    pre_tokens,
    next_tokens,
):
    layout, sparse_mode = _sparse.default(layout, "BSND"), _sparse.default(sparse_mode, 0)
    must.anything(pre_tokens, next_tokens)
    _sparse.check_family("query", "A2", "A3", "A5")
    must.dtype("query", query, torch.float16, torch.bfloat16)
    for name, tensor in (("key", key), ("weights", weights), ("dy", dy)):
        must.same_dtype(name, tensor, "query", query)
    names = ("actual_seq_lengths_query", "actual_seq_lengths_key", "layout", "layout")
    lengths = (actual_seq_lengths_query, actual_seq_lengths_key, None)
    _sparse.check_layouts(query, key, layout, layout, *lengths, names)
    heads, size = query.shape[-2:]
    must.hold(size == 128, "query", "of head size 128", size)
    must.hold(heads <= 64, "query", "of at most 64 heads", heads)
    must.shape("weights", weights, tuple(query.shape[:-1]))
    must.hold(tuple(key.shape[-2:]) == (1, size), "key", f"of 1 head of {size}", tuple(key.shape))
    must.dtype("sparse_indices", sparse_indices, torch.int32)
    rows = tuple(query.shape[:-2])
    _check_chosen("sparse_indices", sparse_indices, rows, None)
    count = sparse_indices.shape[-1]
    must.hold(1 <= count <= 2048, "sparse_indices", "of 1 to 2048 keys", count)
    if must.has_data(sparse_indices) and sparse_indices.numel():
        tokens = key.shape[0 if layout == "TND" else 1]
        most = int(sparse_indices.max())
        must.hold(most < tokens, "sparse_indices", f"below {tokens}, the keys", most)
    _check_chosen("dy", dy, rows, count)
    must.choice("sparse_mode", sparse_mode, (0, 3))


def _check_chosen(name, tensor, rows, count):
    """Rows of chosen keys, with a dimension for the head of the key or without: CANN's host code reads the last alone."""
    must.shape(name, tensor, (*rows, count) if tensor.dim() == len(rows) + 1 else (*rows, 1, count))


def _half(make, *shape, **options):
    return make(*shape, dtype=torch.bfloat16, **options)


def _edges(make, *values):
    return torch.cat([make(1, dtype=torch.int32, low=v, high=v + 1) for v in values])


npu_lightning_indexer.samples = [
    Sample(
        lambda make: (_half(make, 2, 3, 8, 128), _half(make, 2, 9, 1, 128), _half(make, 2, 3, 8)),
        {"sparse_count": 4, "return_value": True},
    ),
    Sample(
        lambda make: (_half(make, 4, 8, 128), _half(make, 4, 16, 1, 128), _half(make, 4, 8)),
        lambda make: {
            "actual_seq_lengths_query": _edges(make, 1, 4),
            "actual_seq_lengths_key": _edges(make, 20, 9),
            "block_table": make(2, 2, dtype=torch.int32, low=0, high=4),
            "layout_query": "TND",
            "layout_key": "PA_BSND",
            "sparse_count": 12,
        },
    ),
]
npu_lightning_indexer_grad.samples = [
    Sample(
        lambda make: (
            _half(make, 2, 3, 8, 128),
            _half(make, 2, 9, 1, 128),
            _half(make, 2, 3, 1, 4),
            make(2, 3, 1, 4, dtype=torch.int32, low=-1, high=9),
            _half(make, 2, 3, 8),
        )
    ),
]
