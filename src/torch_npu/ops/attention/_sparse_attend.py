"""Attention of each query over the keys at its own positions, and its gradient."""

from __future__ import annotations

import torch

from torch_npu.ops.attention._sparse import Span, hidden, steps


def positions(indices: torch.Tensor, size: int) -> torch.Tensor:
    """(rows, n) block numbers, -1 for none, as (rows, n * size) tokens; none after the first -1 either."""
    ended = (indices < 0).int().cumsum(-1) > 0
    tokens = indices.long().unsqueeze(-1) * size + torch.arange(size)
    return tokens.masked_fill_(ended.unsqueeze(-1), -1).flatten(1)


def parts(span: Span, mode: int, indices: torch.Tensor, size: int, width: int):
    """(rows, positions, which of them are hidden) for a few rows of the sequence at a time."""
    for part in steps(span.rows, indices.shape[1] * size * width):
        place = positions(indices[part], size)
        unseen = hidden(span, mode, part, place) | (place < 0) | (place >= span.columns)
        yield part, place.masked_fill(unseen, 0), unseen


def forward(query, key, value, part, place, unseen, scale, sinks=None):
    """query (rows, N, D) over key (columns, D) and value (columns, Dv): out, max and sum of the scores (rows, N)."""
    scores = (query[part] @ key[place].mT).mul_(scale)
    scores.masked_fill_(unseen.unsqueeze(1), -torch.inf)
    peak = scores.amax(-1)
    if sinks is not None:
        peak = torch.maximum(peak, sinks)
    peak = peak.masked_fill(peak == -torch.inf, 0)
    weights = scores.sub_(peak.unsqueeze(-1)).exp_()
    total = weights.sum(-1)
    if sinks is not None:
        total = total + (sinks - peak).exp()
    out = (weights @ value[place]) / total.masked_fill(total == 0, 1).unsqueeze(-1)
    return out, peak, total


def backward(query, key, value, gradient, out, peak, total, part, place, unseen, scale):
    """Gradients of the query rows, and of key and value added at their positions."""
    chosen, chosen_value = key[place], value[place]
    scores = (query[part] @ chosen.mT).mul_(scale)
    scores.masked_fill_(unseen.unsqueeze(1), -torch.inf)
    total = total[part].masked_fill(total[part] == 0, 1)
    weights = scores.sub_(peak[part].unsqueeze(-1)).exp_() / total.unsqueeze(-1)
    grad = gradient[part]
    of_weights = grad @ chosen_value.mT
    inner = (grad * out[part]).sum(-1, keepdim=True)
    of_scores = weights * (of_weights - inner) * scale
    of_query = of_scores @ chosen
    of_key, of_value = torch.zeros_like(key), torch.zeros_like(value)
    flat = place.flatten()
    of_key.index_add_(0, flat, (of_scores.mT @ query[part]).flatten(0, 1))
    of_value.index_add_(0, flat, (weights.mT @ grad).flatten(0, 1))
    return of_query, of_key, of_value
