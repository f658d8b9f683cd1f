"""npu_quant_lightning_indexer: the keys that matter most to each query, from 8-bit queries and keys."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops.attention import _indexer, _sparse
from torch_npu.ops.attention.npu_lightning_indexer import check_sizes


@npu_op(
    "npu_quant_lightning_indexer(Tensor query, Tensor key, Tensor weights, Tensor query_dequant_scale, "
    "Tensor key_dequant_scale, int query_quant_mode, int key_quant_mode, *, "
    "Tensor? actual_seq_lengths_query=None, Tensor? actual_seq_lengths_key=None, "
    'Tensor? block_table=None, str layout_query="BSND", str layout_key="BSND", '
    "int sparse_count=2048, int sparse_mode=3, int pre_tokens=9223372036854775807, "
    "int next_tokens=9223372036854775807, int? query_dtype=None, int? key_dtype=None) -> Tensor",
    core="MIX_AIC",
    product=True,
)
def npu_quant_lightning_indexer(
    query,
    key,
    weights,
    query_dequant_scale,
    key_dequant_scale,
    actual_seq_lengths_query,
    actual_seq_lengths_key,
    block_table,
    layout_query,
    layout_key,
    sparse_count,
    sparse_mode,
    query_dtype,
):
    r"""The positions of the keys with the highest scores for each query, in 8-bit arithmetic.

    $$ I = \mathrm{topk}\left(\sum_h w_h \mathrm{ReLU}(a_h b_j \, q_h k_j^T)\right) $$

    with a scale $a_h$ for each token and head of the query and $b_j$ for each key.

    Args:
        query: (B, S1, N, 128) or TND (T1, N, 128); int8, on Ascend950 also float8_e4m3fn.
        key: (B, S2, 1, 128), TND (T2, 1, 128) or PA_BSND (blocks, block, 1, 128); the dtype of `query`.
        weights: (B, S1, N) or (T1, N), float16; bfloat16 with float32 scales and float8.
        query_dequant_scale: a, the shape of `weights`, float16 or float32.
        key_dequant_scale: b, the shape of `key` without its last dimension, float16 or float32.
        query_quant_mode: 0, a scale for each token and head.
        key_quant_mode: 0.
        actual_seq_lengths_query: as in npu_lightning_indexer.
        actual_seq_lengths_key: as in npu_lightning_indexer.
        block_table: (B, blocks), int32, in PA_BSND.
        layout_query: 'BSND' or 'TND'.
        layout_key: 'PA_BSND' or `layout_query`.
        sparse_count: how many positions, 1 to 2048.
        sparse_mode: 0, or 3 for a causal edge at the lower right corner.
        pre_tokens: left at its default.
        next_tokens: left at its default.
        query_dtype: `torch_npu.hifloat8` for queries in bytes, on Ascend950, with float32 scales and a sparse_count of
            2048; else None.
        key_dtype: the same for `key`.

    Returns:
        Positions (B, S1, 1, sparse_count) or (T1, 1, sparse_count), int32, the best first, -1 where there are less.

    Constraints: Atlas A2, A3 and Ascend950.
    """
    indices = query.new_empty((*query.shape[:-2], 1, sparse_count), dtype=torch.int32).fill_(-1)
    for span, part, queries, factors, keys in _sequences(
        query, key, weights, query_dequant_scale, key_dequant_scale, actual_seq_lengths_query,
        actual_seq_lengths_key, block_table, layout_query, layout_key, query_dtype,
    ):  # fmt: skip
        places = indices.view(-1, sparse_count)[part]
        _indexer.best(queries, factors, keys, span, sparse_mode, sparse_count, places)
    return indices


@npu_quant_lightning_indexer.native
def _(
    query,
    key,
    weights,
    query_dequant_scale,
    key_dequant_scale,
    actual_seq_lengths_query,
    actual_seq_lengths_key,
    block_table,
    layout_query,
    layout_key,
    sparse_count,
    sparse_mode,
    query_dtype,
):
    indices = query.new_empty((*query.shape[:-2], 1, sparse_count), dtype=torch.int32).fill_(-1)
    for span, part, queries, factors, keys in _sequences(
        query, key, weights, query_dequant_scale, key_dequant_scale, actual_seq_lengths_query,
        actual_seq_lengths_key, block_table, layout_query, layout_key, query_dtype,
    ):  # fmt: skip
        found, _ = _indexer.best_natively(queries, factors, keys, span, sparse_mode, sparse_count)
        indices.view(-1, sparse_count)[part] = found
    return indices


def _sequences(
    query,
    key,
    weights,
    query_dequant_scale,
    key_dequant_scale,
    lengths_query,
    lengths_key,
    block_table,
    layout_query,
    layout_key,
    query_dtype,
):
    """Each sequence, its rows among all, and its queries, weights and keys in float32."""
    rows, shape = _sparse.tokens(query), (-1, weights.shape[-1])
    factors, scales = weights.reshape(shape).float(), query_dequant_scale.reshape(shape).float()
    for span in _sparse.spans(query, key, layout_query, layout_key, lengths_query, lengths_key):
        part = slice(span.start, span.start + span.rows)
        found = _values(_sparse.keys(key, span, layout_key, block_table)[:, 0], query_dtype)
        steps = _sparse.keys(key_dequant_scale.unsqueeze(-1), span, layout_key, block_table)
        queries = _values(rows[part], query_dtype) * scales[part].unsqueeze(-1)
        yield span, part, queries, factors[part], found * steps[:, 0].float()


def _values(stored, code):
    """The float32 values of 8-bit elements; `code` names hifloat8."""
    return stored.float() if code is None else _formats.decode(stored.view(torch.uint8), "hifloat8")


@npu_quant_lightning_indexer.meta
def _(query, sparse_count):
    return query.new_empty((*query.shape[:-2], 1, sparse_count), dtype=torch.int32)


@npu_quant_lightning_indexer.check
def _(
    query,
    key,
    weights,
    query_dequant_scale,
    key_dequant_scale,
    query_quant_mode,
    key_quant_mode,
    actual_seq_lengths_query,
    actual_seq_lengths_key,
    block_table,
    layout_query,
    layout_key,
    sparse_count,
    sparse_mode,
    pre_tokens,
    next_tokens,
    query_dtype,
    key_dtype,
):
    _sparse.check_family("query", "A3", "A5", "A2")
    for name, value in (("query_dtype", query_dtype), ("key_dtype", key_dtype)):
        _formats.check(name, value, "hifloat8")
    must.hold(query_dtype == key_dtype, "key_dtype", "as 'query_dtype'", key_dtype)
    named = query_dtype is not None
    if named:
        _sparse.check_family("query_dtype", "A5")
        must.dtype("query", query, torch.uint8, torch.int8)
    else:
        new = (torch.float8_e4m3fn,) if _sparse.new_chip() else ()
        must.dtype("query", query, torch.int8, *new)
    must.same_dtype("key", key, "query", query)
    half = (torch.float16, torch.float16, torch.float16)
    mixed = (torch.bfloat16, torch.float32, torch.float32)
    kinds = (half, mixed) if query.dtype == torch.float8_e4m3fn else (mixed,) if named else (half,)
    given = (weights.dtype, query_dequant_scale.dtype, key_dequant_scale.dtype)
    expected = f"with the scales of dtypes {must.one_of(kinds)}"
    must.hold(given in kinds, "weights", expected, given)
    lengths = (actual_seq_lengths_query, actual_seq_lengths_key, block_table)
    names = ("actual_seq_lengths_query", "actual_seq_lengths_key", "layout_query", "layout_key")
    _sparse.check_layouts(query, key, layout_query, layout_key, *lengths, names)
    check_sizes(query, key, weights)
    must.shape("query_dequant_scale", query_dequant_scale, tuple(weights.shape))
    must.shape("key_dequant_scale", key_dequant_scale, tuple(key.shape[:-1]))
    must.choice("query_quant_mode", query_quant_mode, (0,))
    must.choice("key_quant_mode", key_quant_mode, (0,))
    must.hold(1 <= sparse_count <= 2048, "sparse_count", "from 1 to 2048", sparse_count)
    fits = sparse_count == 2048 or not named
    must.hold(fits, "sparse_count", "2048 with hifloat8", sparse_count)
    must.choice("sparse_mode", sparse_mode, (0, 3))
    _sparse.check_tokens_limits(pre_tokens, next_tokens)


def _int8(make, *shape):
    return make(*shape, dtype=torch.int8, low=-90, high=90)


def _scales(make, *shape):
    return make(*shape, dtype=torch.float16, low=0.001, high=0.01)


npu_quant_lightning_indexer.samples = [
    Sample(
        lambda make: (
            _int8(make, 2, 3, 8, 128),
            _int8(make, 2, 9, 1, 128),
            make(2, 3, 8, dtype=torch.float16),
            _scales(make, 2, 3, 8),
            _scales(make, 2, 9, 1),
            0,
            0,
        ),
        {"sparse_count": 4},
    ),
]
