"""Plain attention in fp64, head by head, for the ATB operators."""

from __future__ import annotations

import torch


def attention(query, key, value, scale, bias=None):
    """query (rows, N, D) over key and value (columns, Nkv, D): out (rows, N, Dv) and logsumexp (N, rows), fp64."""
    query, key, value = (t.detach().cpu().double() for t in (query, key, value))
    heads, group = query.shape[1], query.shape[1] // key.shape[1]
    out = torch.zeros(query.shape[0], heads, value.shape[2], dtype=torch.float64)
    lse = torch.zeros(heads, query.shape[0], dtype=torch.float64)
    for head in range(heads):
        scores = query[:, head] @ key[:, head // group].T * scale
        if bias is not None:
            scores = scores + (bias[head] if bias.dim() == 3 else bias).double()
        out[:, head] = scores.softmax(-1) @ value[:, head // group]
        lse[head] = scores.logsumexp(-1)
    return out, lse


def pages(cache, table, length):
    """The first `length` tokens of a row of the block table, token by token."""
    block = cache.shape[1]
    cache, table = cache.cpu(), table.cpu().tolist()
    if length == 0:
        return cache[0, :0]
    return torch.stack([cache[table[i // block], i % block] for i in range(length)])


def causal(rows, columns):
    """0, and -inf where a key comes after the query; the last query sees all keys."""
    hidden = torch.ones(rows, columns).triu(1 + columns - rows).bool()
    return torch.zeros(rows, columns, dtype=torch.float64).masked_fill(hidden, -torch.inf)


def close(actual, expected, dtype):
    """Within the rounding of the dtype."""
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=tolerance, atol=tolerance)


def lens(*values):
    return torch.tensor(values, dtype=torch.int32)
