"""Sparse attention in fp64, row by row."""

from __future__ import annotations

import torch


def sequences(query, key, layout, kv_layout, lengths, kv_lengths, table=None):
    """(tokens of the query, keys) of each sequence, as index lists into (T, ...) rows and lists of key rows."""
    found = []
    batch = query.shape[0] if layout == "BSND" else len(lengths)
    for b in range(batch):
        if layout == "TND":
            first = 0 if b == 0 else lengths[b - 1]
            rows = list(range(first, lengths[b]))
        else:
            size = query.shape[1]
            rows = [b * size + i for i in range(lengths[b] if lengths else size)]
        if kv_layout == "TND":
            first = 0 if b == 0 else kv_lengths[b - 1]
            columns = list(range(first, kv_lengths[b]))
        elif kv_layout == "BSND":
            size = key.shape[1]
            columns = [b * size + j for j in range(kv_lengths[b] if kv_lengths else size)]
        else:
            block = key.shape[1]
            columns = [int(table[b][j // block]) * block + j % block for j in range(kv_lengths[b])]
        found.append((rows, columns))
    return found


def flat(tensor):
    """(..., N, D) as (T, N, D) in fp64 on the host."""
    return tensor.detach().cpu().reshape(-1, *tensor.shape[-2:]).double()


def seen(row, rows, columns, mode):
    """How many keys query number `row` of a sequence sees."""
    return columns if mode == 0 else max(0, columns - rows + row + 1)


def attention(query, key, value, scale, sink=None):
    """One query (N, D) over (n, D) and (n, Dv)."""
    scores = query @ key.T * scale
    top = scores.amax(-1) if len(key) else torch.full((len(query),), -torch.inf).double()
    if sink is not None:
        top = torch.maximum(top, sink)
    weights = (scores - top[:, None]).exp()
    total = weights.sum(-1)
    if sink is not None:
        total = total + (sink - top).exp()
    return weights @ value / total[:, None], top, total
