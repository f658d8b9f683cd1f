"""The routing operators as plain loops, written from upstream's pages. No code under test."""

from __future__ import annotations

import torch

DEVICE = "npu"


def npu(values, dtype=torch.int32) -> torch.Tensor:
    """A tensor on the device under test from a list or a host tensor."""
    tensor = values if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=dtype)
    return tensor.to(DEVICE)


def largest(values: list[float], k: int) -> list[int]:
    """The places of the k largest values; of equal ones the first."""
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]


def by_expert(experts: list[int]) -> list[int]:
    """The pairs in the order of their experts; of equal ones the first."""
    return sorted(range(len(experts)), key=lambda i: (experts[i], i))


def init_routing_v2(
    experts: list[list[int]], start: int, end: int, active_num: int = -1, capacity: int = 0
):
    """The pair of each row (-1: none), the row of each pair (-1: none), tokens of each expert."""
    flat = [e for row in experts for e in row]
    order = [p for p in by_expert(flat) if start <= flat[p] < end]
    counts = [sum(e == expert for e in flat) for expert in range(start, end)]
    went = [-1] * len(flat)
    if capacity:
        rows = [-1] * ((end - start) * capacity)
        for expert in range(start, end):
            mine = [p for p in order if flat[p] == expert][:capacity]
            for rank, pair in enumerate(mine):
                rows[expert * capacity + rank] = pair
                went[pair] = expert * capacity + rank
        return rows, went, counts
    for row, pair in enumerate(order):
        went[pair] = row
    length = len(flat) if active_num <= 0 else min(active_num, len(flat))
    rows = (order + [-1] * (len(flat) - len(order)))[:length]
    return rows, went, counts


def scatter_order(experts: list[list[int]], start: int) -> list[int]:
    """All pairs by expert, those below the range last."""
    flat = [e if e >= start else 2**31 - 1 for row in experts for e in row]
    return by_expert(flat)


def finalize(rows, index, top_k, by_row, scales=None, bias=None, experts=None, skips=()):
    """out[i] = skips + sum over j of scale * (row + bias), row by row, in the dtype of the rows."""
    tokens = len(index) // top_k
    out = torch.zeros(tokens, rows.size(-1), dtype=rows.dtype)
    rows = rows.reshape(-1, rows.size(-1))
    for i in range(tokens):
        for skip in skips:
            out[i] += skip[i]
        for j in range(top_k):
            place = index[i * top_k + j] if by_row else index[j * tokens + i]
            row = torch.zeros_like(out[i]) if place < 0 else rows[place].clone()
            if bias is not None:
                row = row + bias[experts[i][j]]
            out[i] += row if scales is None else scales[i][j] * row
    return out
