"""npu_sparse_lightning_indexer_grad_kl_loss: the loss of a lightning indexer over chosen keys, and its gradients."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import _indexer, _sparse, _sparse_attend
from torch_npu.ops.attention import _indexer_loss as loss_of


@npu_op(
    "npu_sparse_lightning_indexer_grad_kl_loss(Tensor query, Tensor key, Tensor query_index, "
    "Tensor key_index, Tensor weights, Tensor sparse_indices, Tensor softmax_max, "
    "Tensor softmax_sum, float scale_value, *, Tensor? query_rope=None, Tensor? key_rope=None, "
    "SymInt[]? actual_seq_qlen=None, SymInt[]? actual_seq_klen=None, str? layout='BSND', "
    "int? sparse_mode=3, int? pre_tokens=9223372036854775807, "
    "int? next_tokens=9223372036854775807, Tensor? sinks=None) -> (Tensor, Tensor, Tensor, Tensor)",
    core="MIX_AIC",
    product=True,
)
def npu_sparse_lightning_indexer_grad_kl_loss(
    query,
    key,
    query_index,
    key_index,
    weights,
    sparse_indices,
    softmax_max,
    softmax_sum,
    scale_value,
    query_rope,
    key_rope,
    actual_seq_qlen,
    actual_seq_klen,
    layout,
    sparse_mode,
    sinks,
):
    r"""`npu_dense_lightning_indexer_grad_kl_loss` over the keys that `sparse_indices` choose for each query.

    $$ loss = \sum p \log\frac{p}{\mathrm{softmax}(I)}, \quad dI = \mathrm{softmax}(I) - p $$

    where p is the mean over heads of the attention weights at the chosen keys, with `sinks` divided by its sum.

    Args:
        query: (B, S1, N, 512) or TND (T1, N, 512), float16 or bfloat16; 32, 64 or 128 heads (Ascend950:
            or 48 beside 24 of `query_index`).
        key: (B, S2, 1, 512) or (T2, 1, 512).
        query_index: (B, S1, Ni, 128) or (T1, Ni, 128); 8, 16, 32 or 64 heads.
        key_index: (B, S2, 1, 128) or (T2, 1, 128).
        weights: (B, S1, Ni) or (T1, Ni), the dtype of `query` or float32.
        sparse_indices: (B, S1, 1, n) or (T1, 1, n), int32, n a multiple of 1024 up to 8192; the first negative
            index ends a row.
        softmax_max: the maxima of the attention's scores, (B, 1, S1, N) or (1, T1, N), float32.
        softmax_sum: their sums.
        scale_value: factor of the attention's scores.
        query_rope: (..., N, 64), behind `query`; needed.
        key_rope: (..., 1, 64), behind `key`; needed.
        actual_seq_qlen: sums of the lengths of queries, needed in TND.
        actual_seq_klen: sums of the lengths of keys, needed in TND.
        layout: 'BSND' or 'TND'.
        sparse_mode: 3, a causal edge at the lower right corner.
        pre_tokens: read nowhere.
        next_tokens: read nowhere.
        sinks: (N,), float32: the attention had sinks, so its weights do not sum to 1.

    Returns:
        The gradients of query_index, key_index and weights, and the loss (1,), float32.
    """
    layout, sparse_mode = _sparse.default(layout, "BSND"), _sparse.default(sparse_mode, 3)
    rows, keys = loss_of.joined(query, query_rope), loss_of.joined(key, key_rope)[:, 0]
    index, index_keys = wide(_sparse.tokens(query_index)), wide(_sparse.tokens(key_index))[:, 0]
    factors = wide(weights.reshape(-1, weights.shape[-1]))
    places = sparse_indices.reshape(-1, sparse_indices.shape[-1])
    made = [torch.zeros_like(t) for t in (index, index_keys, factors)]
    loss = torch.zeros(1)
    for span in _sparse.spans(query, key, layout, layout, actual_seq_qlen, actual_seq_klen):
        if span.columns == 0:
            continue
        columns = slice(span.kv_start, span.kv_start + span.columns)
        own = slice(span.start, span.start + span.rows)
        blocks = _sparse_attend.parts(span, sparse_mode, places[own], 1, keys.shape[1])
        for part, place, unseen in blocks:
            where = slice(span.start + part.start, span.start + part.stop)
            peak, total = (
                loss_of.statistics(t, span, layout, part) for t in (softmax_max, softmax_sum)
            )
            total = total.masked_fill(total == 0, 1)
            target = loss_of.attention_weights(
                rows[where], keys[columns][place], peak, total, scale_value, unseen
            ).mean(1)
            if sinks is not None:
                target = target / target.sum(-1, keepdim=True).clamp(min=loss_of.LEAST)
            product = (index[where] @ index_keys[columns][place].mT).relu()
            scores = (product * factors[where].unsqueeze(-1)).sum(1)
            found = scores.masked_fill(unseen, -torch.inf).softmax(-1).nan_to_num(0)
            loss += loss_of.divergence(target, found)
            of_query, of_weights, of_key = _indexer.derived(
                index[where],
                factors[where],
                index_keys[columns],
                place.masked_fill(unseen, -1),
                found - target,
                query_index.dtype,
            )
            made[0][where] = of_query
            made[1][columns] += of_key
            made[2][where] = of_weights
    given = (query_index, key_index, weights)
    return *(g.view(t.shape).to(t.dtype) for g, t in zip(made, given, strict=True)), loss


@npu_sparse_lightning_indexer_grad_kl_loss.meta
def _(query_index, key_index, weights):
    new = [t.new_empty(t.shape) for t in (query_index, key_index, weights)]
    return *new, query_index.new_empty(1, dtype=torch.float32)


@npu_sparse_lightning_indexer_grad_kl_loss.check
def _(
    query,
    key,
    query_index,
    key_index,
    weights,
    sparse_indices,
    softmax_max,
    softmax_sum,
    query_rope,
    key_rope,
    actual_seq_qlen,
    actual_seq_klen,
    layout,
    sparse_mode,
    pre_tokens,
    next_tokens,
    sinks,
):
    must.anything(pre_tokens, next_tokens)
    layout, sparse_mode = _sparse.default(layout, "BSND"), _sparse.default(sparse_mode, 3)
    lengths = (actual_seq_qlen, actual_seq_klen)
    loss_of.check_index(query_index, key_index, weights, layout, *lengths)
    ropes = {"query_rope": query_rope, "key_rope": key_rope}
    given = {"softmax_max": softmax_max, "softmax_sum": softmax_sum}
    must.present("query_rope", query_rope, "(the attention has ropes)")
    must.present("key_rope", key_rope, "(the attention has ropes)")
    loss_of.check_attention(query, key, query_index, key_index, ropes, given, 1, 512)
    must.dtype("sparse_indices", sparse_indices, torch.int32)
    must.shape("sparse_indices", sparse_indices, (*query.shape[:-2], 1, None))
    count = sparse_indices.shape[-1]
    fits = 0 < count <= 8192 and count % 1024 == 0
    must.hold(fits, "sparse_indices", "of a multiple of 1024 keys up to 8192", count)
    must.choice("sparse_mode", sparse_mode, (3,))
    must.dtype("sinks", sinks, torch.float32)
    must.shape("sinks", sinks, (query.shape[-2],))


def _sample(make, tokens, keys, one):
    half = {"dtype": torch.bfloat16}
    given = (
        make(*tokens, 32, 512, **half),
        make(*keys, 1, 512, **half),
        make(*tokens, 8, 128, **half),
        make(*keys, 1, 128, **half),
        make(*tokens, 8, **half),
        make(*tokens, 1, 1024, dtype=torch.int32, low=0, high=5),
        make(*one, 32, low=1, high=2),
        make(*one, 32, low=2, high=4),
        0.1,
    )
    return given, {
        "query_rope": make(*tokens, 32, 64, **half),
        "key_rope": make(*keys, 1, 64, **half),
    }


_DENSE, _FLAT = ((1, 3), (1, 5), (1, 1, 3)), ((3,), (5,), (1, 3))
npu_sparse_lightning_indexer_grad_kl_loss.samples = [
    Sample(
        lambda make: _sample(make, *_DENSE)[0],
        lambda make: _sample(make, *_DENSE)[1],
    ),
    Sample(
        lambda make: _sample(make, *_FLAT)[0],
        lambda make: (
            _sample(make, *_FLAT)[1]
            | {
                "actual_seq_qlen": [1, 3],
                "actual_seq_klen": [2, 5],
                "layout": "TND",
                "sinks": make(32),
            }
        ),
    ),
]
