"""npu_dense_lightning_indexer_softmax_lse: the maxima and sums of a lightning indexer's scores."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import _indexer, _indexer_loss, _sparse


@npu_op(
    "npu_dense_lightning_indexer_softmax_lse(Tensor query_index, Tensor key_index, Tensor weights, *, "
    "SymInt[]? actual_seq_qlen=None, SymInt[]? actual_seq_klen=None, str? layout='BSND', "
    "int? sparse_mode=3, int? pre_tokens=9223372036854775807, "
    "int? next_tokens=9223372036854775807) -> (Tensor, Tensor)",
    core="MIX_AIC",
    product=True,
)
def npu_dense_lightning_indexer_softmax_lse(
    query_index, key_index, weights, actual_seq_qlen, actual_seq_klen, layout, sparse_mode
):
    r"""The largest score of each query, and the sum of the exponentials of all that it sees.

    $$ I_j = \sum_h w_h \mathrm{ReLU}(q_h k_j^T), \quad m = \max_j I_j, \quad s = \sum_j e^{I_j - m} $$

    Args:
        query_index: (B, S1, N, 128) or TND (T1, N, 128), float16 or bfloat16; 8, 16, 32 or 64 heads.
        key_index: (B, S2, 1, 128) or TND (T2, 1, 128); S1 is at most S2.
        weights: (B, S1, N) or (T1, N), the dtype of `query_index` or float32.
        actual_seq_qlen: sums of the lengths of queries, needed in TND.
        actual_seq_klen: sums of the lengths of keys, needed in TND.
        layout: 'BSND' or 'TND'.
        sparse_mode: 3, a causal edge at the lower right corner.
        pre_tokens: left at its default.
        next_tokens: left at its default.

    Returns:
        m and s, (B, 1, S1) or (1, T1), float32.
    """
    tops, sums = _results(query_index)
    flat_tops, flat_sums = tops.view(-1), sums.view(-1)
    rows, keys = wide(_sparse.tokens(query_index)), wide(_sparse.tokens(key_index))[:, 0]
    factors = wide(weights.reshape(-1, weights.shape[-1]))
    lengths = (actual_seq_qlen, actual_seq_klen)
    for span in _sparse.spans(query_index, key_index, layout, layout, *lengths):
        if span.columns == 0:
            continue
        own = keys[span.kv_start : span.kv_start + span.columns]
        for part in _sparse.steps(span.rows, span.columns * rows.shape[1]):
            where = slice(span.start + part.start, span.start + part.stop)
            scores = _indexer.scored(rows[where], factors[where], own)
            unseen = _sparse.hidden(span, sparse_mode, part, torch.arange(span.columns))
            scores.masked_fill_(unseen, -torch.inf)
            top = scores.amax(-1)
            flat_tops[where] = top
            flat_sums[where] = (scores - top.unsqueeze(-1)).exp().sum(-1)
    return tops, sums


def _results(query_index):
    tokens = query_index.shape[:-2]
    shape = (1, *tokens) if query_index.dim() == 3 else (tokens[0], 1, tokens[1])
    return tuple(query_index.new_zeros(shape, dtype=torch.float32) for _ in range(2))


@npu_dense_lightning_indexer_softmax_lse.meta
def _(query_index):
    return _results(query_index)


@npu_dense_lightning_indexer_softmax_lse.check
def _(
    query_index,
    key_index,
    weights,
    actual_seq_qlen,
    actual_seq_klen,
    layout,
    sparse_mode,
    pre_tokens,
    next_tokens,
):
    lengths = (actual_seq_qlen, actual_seq_klen)
    _indexer_loss.check_index(query_index, key_index, weights, layout, *lengths)
    must.choice("sparse_mode", sparse_mode, (3,))
    _sparse.check_tokens_limits(pre_tokens, next_tokens)


npu_dense_lightning_indexer_softmax_lse.samples = [
    Sample(
        lambda make: (
            make(2, 3, 8, 128, dtype=torch.bfloat16),
            make(2, 5, 1, 128, dtype=torch.bfloat16),
            make(2, 3, 8, dtype=torch.bfloat16),
        )
    ),
    Sample(
        lambda make: (
            make(5, 8, 128, dtype=torch.float16),
            make(9, 1, 128, dtype=torch.float16),
            make(5, 8),
        ),
        {"actual_seq_qlen": [2, 5], "actual_seq_klen": [4, 9], "layout": "TND"},
    ),
]
