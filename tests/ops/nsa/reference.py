"""Native sparse attention in fp64, by loops over rows and heads, from the paper and CANN's pages."""

from __future__ import annotations

import math

import torch

LOW = -3.0e38


def spans(ends):
    return list(zip([0, *ends[:-1]], ends, strict=True))


def compress(x, w, size, stride, ends):
    rows = []
    for start, end in spans(ends):
        first = start
        while first + size <= end:
            rows.append(sum(w[j].unsqueeze(-1) * x[first + j] for j in range(size)))
            first += stride
    return torch.stack(rows) if rows else x.new_zeros(0, *x.shape[1:])


def attend(q, k, v, scale, hidden):
    """One row: out, weights, largest, sum; a row of hidden keys alone weighs them alike."""
    s = (k @ q) * scale
    s = torch.where(hidden, torch.full_like(s, LOW), s) if hidden is not None else s
    weights = (s - s.max()).exp()
    return (weights / weights.sum()) @ v, weights / weights.sum(), s.max(), weights.sum()


def block_weight(p, blocks, step, overlap, shift=0):
    """The weight of each block: a double loop."""
    out = torch.zeros(blocks, dtype=p.dtype)
    for j in range(blocks):
        for m in range(step):
            for n in range(overlap):
                at = (j + 1) * step - shift - m - n
                if 0 <= at < len(p):
                    out[j] += p[at]
    return out


def pages(cache, table, length):
    """The first `length` rows of a sequence in pages (blocks, size, ...)."""
    count = math.ceil(length / cache.shape[1])
    return torch.cat([cache[:0].flatten(0, 1), *(cache[int(b)] for b in table[:count])])[:length]
