"""Attention of each query over the keys at its own positions, and its gradient."""

from __future__ import annotations

import torch

from torch_npu.ops.attention._sparse import Span, hidden, page_numbers, steps


def positions(indices: torch.Tensor, size: int) -> torch.Tensor:
    """(rows, n) block numbers, -1 for none, as (rows, n * size) tokens; none after the first -1 either."""
    ended = (indices < 0).int().cumsum(-1) > 0
    if size == 1:
        return indices.long().masked_fill(ended, -1)
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


def natively(query, key, value, rows, kept, scale, sinks=None, bias=None):
    """`forward` in C++, for tokens of any sequences: query (T, N, D) over the `kept` first of its `rows` (T, n).

    `rows` number the tokens of key (tokens, D) and value (tokens, Dv): to the blocked attention, each query is a
    sequence whose keys lie in pages of one token. `bias` (T, N, n) is added to the scaled scores.
    """
    count, heads, _ = query.shape
    lowest = torch.finfo(torch.float32).min
    out = torch.zeros(1, heads, count, value.shape[-1], dtype=query.dtype)
    peak, total = (torch.full((1, heads, count, 1), lowest) for _ in range(2))
    torch.ops.softnpu.attention(
        query.transpose(0, 1).unsqueeze(0),
        key[:, None, None],
        value[:, None, None],
        out,
        softmax_max=peak,
        softmax_sum=total,
        scale=scale,
        sink=sinks,
        bias=None if bias is None else bias.unsqueeze(2),
        q_start=list(range(count)),
        q_len=[1] * count,
        kv_start=[0] * count,
        kv_len=kept.tolist(),
        pages=rows,
    )
    empty = peak <= lowest
    peak, total = peak.masked_fill(empty, 0), total.masked_fill(empty, 0)
    return out[0].transpose(0, 1), peak[0, :, :, 0].t(), total[0, :, :, 0].t()


def chosen_rows(spans, count, mode, indices, size, key, kv_layout, table):
    """For `count` queries: the tokens of `key` that each sees, as (count, n) rows, and how many of them count.

    Tokens are numbered as they lie in memory, in all sequences or pages. All sequences are looked at together: a step
    of decoding has one query in each.
    """
    width = indices.shape[1] * size
    found = torch.zeros(count, max(1, width), dtype=torch.int64)
    kept = torch.zeros(count, dtype=torch.int64)
    edges, starts, owners = _of_queries(spans, count, mode)
    pages = page_numbers(key, spans, table) if kv_layout == "PA_BSND" else None
    for part in steps(count, width):
        edge = edges[part]
        place = positions(indices[part], size)
        unseen = (place < 0) | (place >= edge)
        if unseen.any():  # what counts goes to the front
            order = unseen.to(torch.uint8).argsort(dim=-1, stable=True)
            place = place.masked_fill_(unseen, 0).gather(-1, order)
            kept[part] = width - unseen.sum(-1)
        else:
            kept[part] = width
        if pages is None:
            place = place + starts[part]
        else:
            place = pages[owners[part], place // key.shape[1]] * key.shape[1] + place % key.shape[1]
        found[part] = place.masked_fill_(edge == 0, 0)
    return found, kept


def _of_queries(spans, count, mode):
    """For each query, (count, 1): how many keys of its sequence it sees, the first of them in memory, the sequence."""
    table = [(0, 0, 0)] * count
    for span in spans:
        for row in range(span.rows if span.columns else 0):
            table[span.start + row] = (span.edge(mode, row), span.kv_start, span.index)
    return torch.tensor(table, dtype=torch.int64).view(count, 3).split(1, -1)


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
