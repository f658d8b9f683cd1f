"""npu_dense_lightning_indexer_grad_kl_loss: the loss of a lightning indexer over all keys, and its gradients."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.attention import _indexer, _sparse
from torch_npu.ops.attention import _indexer_loss as loss_of


@npu_op(
    "npu_dense_lightning_indexer_grad_kl_loss(Tensor query, Tensor key, Tensor query_index, "
    "Tensor key_index, Tensor weights, Tensor softmax_max, Tensor softmax_sum, "
    "Tensor softmax_max_index, Tensor softmax_sum_index, float scale_value, *, "
    "Tensor? query_rope=None, Tensor? key_rope=None, SymInt[]? actual_seq_qlen=None, "
    "SymInt[]? actual_seq_klen=None, str? layout='BSND', int? sparse_mode=3, "
    "int? pre_tokens=9223372036854775807, int? next_tokens=9223372036854775807) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    core="MIX_AIC",
    product=True,
)
def npu_dense_lightning_indexer_grad_kl_loss(
    query,
    key,
    query_index,
    key_index,
    weights,
    softmax_max,
    softmax_sum,
    softmax_max_index,
    softmax_sum_index,
    scale_value,
    query_rope,
    key_rope,
    actual_seq_qlen,
    actual_seq_klen,
    layout,
    sparse_mode,
):
    r"""The loss by which a lightning indexer learns the attention, and the gradients of the indexer's tensors.

    $$ p = \frac{1}{N} \sum_h \mathrm{softmax}(scale \cdot q_h k_h^T), \quad
       I = \sum_h w_h \mathrm{ReLU}(\tilde q_h \tilde k^T), \quad
       loss = \sum p \log\frac{p}{\mathrm{softmax}(I)}, \quad dI = \mathrm{softmax}(I) - p $$

    Args:
        query: (B, S1, N, 128) or TND (T1, N, 128), float16 or bfloat16; 32, 64 or 128 heads.
        key: (B, S2, N, 128) or (T2, N, 128).
        query_index: (B, S1, Ni, 128) or (T1, Ni, 128); 8, 16, 32 or 64 heads.
        key_index: (B, S2, 1, 128) or (T2, 1, 128).
        weights: (B, S1, Ni) or (T1, Ni), the dtype of `query` or float32.
        softmax_max: the maxima of the attention's scores, (B, N, S1, 1) or (N, T1, 1), float32.
        softmax_sum: their sums.
        softmax_max_index: of `npu_dense_lightning_indexer_softmax_lse`, (B, 1, S1) or (1, T1), float32.
        softmax_sum_index: of the same.
        scale_value: factor of the attention's scores.
        query_rope: (..., N, 64), behind `query`.
        key_rope: (..., N, 64), behind `key`.
        actual_seq_qlen: sums of the lengths of queries, needed in TND.
        actual_seq_klen: sums of the lengths of keys, needed in TND.
        layout: 'BSND' or 'TND'.
        sparse_mode: 3, a causal edge at the lower right corner.
        pre_tokens: read nowhere.
        next_tokens: read nowhere.

    Returns:
        The gradients of query_index, key_index and weights, and the loss (1,), float32.

    Constraints: Atlas A2 and A3.
    """
    layout, sparse_mode = _sparse.default(layout, "BSND"), _sparse.default(sparse_mode, 3)
    rows, keys = loss_of.joined(query, query_rope), loss_of.joined(key, key_rope)
    index, index_keys = wide(_sparse.tokens(query_index)), wide(_sparse.tokens(key_index))[:, 0]
    factors = wide(weights.reshape(-1, weights.shape[-1]))
    made = [torch.zeros_like(t) for t in (index, index_keys, factors)]
    loss = torch.zeros(1)
    for span in _sparse.spans(query, key, layout, layout, actual_seq_qlen, actual_seq_klen):
        columns = slice(span.kv_start, span.kv_start + span.columns)
        for part in _sparse.steps(span.rows, span.columns * rows.shape[1]):
            where = slice(span.start + part.start, span.start + part.stop)
            unseen = _sparse.hidden(span, sparse_mode, part, torch.arange(span.columns))
            peak, total = (
                loss_of.statistics(t, span, layout, part) for t in (softmax_max, softmax_sum)
            )
            target = loss_of.attention_weights(
                rows[where], keys[columns], peak, total, scale_value, unseen
            ).mean(1)
            scores = _indexer.scored(index[where], factors[where], index_keys[columns])
            scores = scores.masked_fill(unseen, -torch.inf)
            top, sums = (
                loss_of.index_statistics(t, span, layout, part)
                for t in (softmax_max_index, softmax_sum_index)
            )
            found = (scores - top).exp() / sums
            loss += loss_of.divergence(target, found)
            of_query, of_key, of_weights = loss_of.gradients(
                index[where], index_keys[columns], factors[where], found - target, query_index.dtype
            )
            made[0][where] = of_query
            made[1][columns] += of_key
            made[2][where] = of_weights
    given = (query_index, key_index, weights)
    return *(g.view(t.shape).to(t.dtype) for g, t in zip(made, given, strict=True)), loss


@npu_dense_lightning_indexer_grad_kl_loss.meta
def _(query_index, key_index, weights):
    new = [t.new_empty(t.shape) for t in (query_index, key_index, weights)]
    return *new, query_index.new_empty(1, dtype=torch.float32)


@npu_dense_lightning_indexer_grad_kl_loss.check
def _(
    query,
    key,
    query_index,
    key_index,
    weights,
    softmax_max,
    softmax_sum,
    softmax_max_index,
    softmax_sum_index,
    query_rope,
    key_rope,
    actual_seq_qlen,
    actual_seq_klen,
    layout,
    sparse_mode,
    pre_tokens,
    next_tokens,
):
    must.anything(pre_tokens, next_tokens)
    _sparse.check_family("query", "A2", "A3")
    layout, sparse_mode = _sparse.default(layout, "BSND"), _sparse.default(sparse_mode, 3)
    lengths = (actual_seq_qlen, actual_seq_klen)
    loss_of.check_index(query_index, key_index, weights, layout, *lengths)
    ropes = {"query_rope": query_rope, "key_rope": key_rope}
    given = {"softmax_max": softmax_max, "softmax_sum": softmax_sum}
    loss_of.check_attention(query, key, query_index, key_index, ropes, given, None, 128)
    tokens = query.shape[:-2]
    shape = (1, *tokens) if query.dim() == 3 else (tokens[0], 1, tokens[1])
    named = {"softmax_max_index": softmax_max_index, "softmax_sum_index": softmax_sum_index}
    for name, tensor in named.items():
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, shape)
    must.choice("sparse_mode", sparse_mode, (3,))


npu_dense_lightning_indexer_grad_kl_loss.samples = [
    Sample(
        lambda make: (
            make(1, 3, 32, 128, dtype=torch.bfloat16),
            make(1, 5, 32, 128, dtype=torch.bfloat16),
            make(1, 3, 8, 128, dtype=torch.bfloat16),
            make(1, 5, 1, 128, dtype=torch.bfloat16),
            make(1, 3, 8, dtype=torch.bfloat16),
            make(1, 32, 3, 1, low=1, high=2),
            make(1, 32, 3, 1, low=2, high=4),
            make(1, 1, 3, low=1, high=2),
            make(1, 1, 3, low=2, high=4),
            0.1,
        )
    ),
]
