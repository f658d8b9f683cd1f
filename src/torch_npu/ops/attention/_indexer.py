"""The scores of the lightning indexer: weighted sums over heads of ReLU(Q K^T)."""

from __future__ import annotations

import torch

from torch_npu.ops.attention._sparse import Span, hidden, steps


def best(query, weights, key, span: Span, mode, count, indices, values=None, unseen=hidden) -> None:
    """Writes the positions (and scores) of the `count` best keys of each query of a sequence, -1 where there are less.

    query (rows, N, D) and weights (rows, N) in fp32, key (columns, D); `indices` and `values` (rows, count);
    `unseen(span, mode, part, columns)` says which keys do not count.
    """
    for part in steps(span.rows, span.columns * query.shape[1]):
        scores = scored(query[part], weights[part], key)
        column = torch.arange(span.columns)
        scores.masked_fill_(unseen(span, mode, part, column), -torch.inf)
        kept = min(count, span.columns)
        top = torch.sort(scores, dim=-1, descending=True, stable=True)
        found, order = top.values[:, :kept], top.indices[:, :kept].int()
        seen = found > -torch.inf
        indices[part, :kept] = torch.where(seen, order, -1)
        if values is not None:
            values[part, :kept] = torch.where(seen, found, 0).to(values.dtype)


def best_natively(query, weights, key, span: Span, mode, count):
    """`best` in C++, for fp32 or half precision: positions (rows, count), int32, and scores, fp32."""
    seen = torch.full((span.rows,), span.columns)
    if mode != 0:  # the causal edge at the lower right corner
        seen = (torch.arange(1, span.rows + 1) + (span.columns - span.rows)).clamp(0, span.columns)
    return torch.ops.softnpu.indexer(query, weights, key, seen, count)


def scored(query, weights, key) -> torch.Tensor:
    """(rows, columns): the sum over heads of weight times ReLU(q k)."""
    product = (query.transpose(0, 1) @ key.t()).relu_()  # (N, rows, columns)
    return (product * weights.t().unsqueeze(-1)).sum(0)


def derived(query, weights, key, position, gradient, dtype):
    """Gradients of the scores at chosen positions; the slopes are multiplied in `dtype`, as on the card.

    query (rows, N, D), weights (rows, N), key (columns, D), position (rows, n) with -1 for none, gradient (rows, n) of
    the scores there. Returns those of query, weights and key.
    """
    valid = position >= 0
    place = position.clamp(min=0).long()
    chosen = key[place]  # (rows, n, D)
    product = query @ chosen.mT  # (rows, N, n)
    gradient = gradient.masked_fill(~valid, 0).unsqueeze(1)
    of_weights = (product.relu() * gradient).sum(-1)
    slope = (product > 0) * gradient * weights.unsqueeze(-1)  # (rows, N, n)
    slope = slope.to(dtype).to(query.dtype)
    of_query = slope @ chosen
    of_key = torch.zeros_like(key)
    of_key.index_add_(0, place.flatten(), (slope.mT @ query).flatten(0, 1))
    return of_query, of_weights, of_key
