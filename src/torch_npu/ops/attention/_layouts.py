"""The layouts of training attention: BSH, SBH, BSND, BNSD and TND as views of (batch, heads, sequence, head size).

In TND the sequences of all batches lie one after the other: the view is (1, N, T, D), and segments tell where each
sequence begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

LAYOUTS = ("BSH", "SBH", "BSND", "BNSD", "TND")

#: softmax_max and softmax_sum hold every value this many times
COPIES = 8


class Segment(NamedTuple):
    """Where the sequence of one batch lies."""

    q_start: int
    q_length: int
    kv_start: int
    kv_length: int


def heads_first(tensor: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    """The tensor as (B, N, S, D), a view."""
    if layout == "BSH":
        return tensor.unflatten(2, (heads, tensor.shape[2] // heads)).transpose(1, 2)
    if layout == "SBH":
        return tensor.unflatten(2, (heads, tensor.shape[2] // heads)).permute(1, 2, 0, 3)
    if layout == "BSND":
        return tensor.transpose(1, 2)
    if layout == "BNSD":
        return tensor
    return tensor.transpose(0, 1).unsqueeze(0)


def head_counts(query: torch.Tensor, key: torch.Tensor, layout: str, heads: int) -> tuple[int, int]:
    """(N, Nkv): the heads of the query and of key and value."""
    if layout in ("BSH", "SBH"):
        return heads, key.shape[2] // (query.shape[2] // heads)
    axis = {"BSND": 2, "BNSD": 1, "TND": 1}[layout]
    return query.shape[axis], key.shape[axis]


def output_shape(query: torch.Tensor, layout: str, heads: int, size: int) -> list[int]:
    """The shape of attention_out for a value head size."""
    shape = list(query.shape)
    shape[-1] = heads * size if layout in ("BSH", "SBH") else size
    return shape


def stats_shape(query: torch.Tensor, layout: str, heads: int) -> list[int]:
    """The shape of softmax_max and softmax_sum."""
    if layout == "TND":
        return [query.shape[0], heads, COPIES]
    batch, length = {"BSH": (0, 1), "SBH": (1, 0), "BSND": (0, 1), "BNSD": (0, 2)}[layout]
    return [query.shape[batch], heads, query.shape[length], COPIES]


def lengths(ends: Sequence[int]) -> list[int]:
    """Lengths from cumulative ends; zeros at the tail are batches that take no part."""
    found, last = [], 0
    for end in ends:
        found.append(end - last if end else 0)
        last = end or last
    return found


def segments(
    query: torch.Tensor,
    key: torch.Tensor,
    q_ends: Sequence[int] | None,
    kv_ends: Sequence[int] | None,
) -> list[Segment]:
    """The segments of (B, N, S, D) tensors; `q_ends` and `kv_ends` are given in TND."""
    if q_ends is None or kv_ends is None:
        return [Segment(0, query.shape[2], 0, key.shape[2])] * query.shape[0]
    found, q_start, kv_start = [], 0, 0
    for q_length, kv_length in zip(lengths(q_ends), lengths(kv_ends), strict=True):
        found.append(Segment(q_start, q_length, kv_start, kv_length))
        q_start, kv_start = q_start + q_length, kv_start + kv_length
    return found


def rows_by_head(stats: torch.Tensor, parts: list[Segment]) -> torch.Tensor:
    """(T, N, 8) into what upstream calls NTD: for each sequence its heads, for each head its rows."""
    blocks = [stats[s.q_start : s.q_start + s.q_length].transpose(0, 1) for s in parts]
    return _joined(stats, parts, blocks)


def heads_by_row(stats: torch.Tensor, parts: list[Segment]) -> torch.Tensor:
    """The inverse of `rows_by_head`."""
    heads = stats.shape[1]
    blocks = [
        stats[s.q_start : s.q_start + s.q_length].reshape(heads, s.q_length, COPIES).transpose(0, 1)
        for s in parts
    ]
    return _joined(stats, parts, blocks)


def _joined(stats, parts, blocks) -> torch.Tensor:
    covered = sum(s.q_length for s in parts)
    rest = stats[covered:]
    return torch.cat([b.reshape(-1) for b in (*blocks, rest)]).view(stats.shape)
