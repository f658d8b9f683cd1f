"""softmax(scale * Q K^T + bias, masked) V over segments of a batch, a block of rows at a time.

`in_blocks` is the formula in PyTorch, a few rows of scores at a time; `natively` hands the same
problem to the C++ kernel (csrc/kernels/attention.h), which never holds a row of scores. Both leave
0 in rows that attend to nothing, and infinity in their logsumexp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from torch_npu.ops._math import wide

#: scores that `in_blocks` holds at a time
BLOCK = 2**21

#: an edge that no row reaches
FAR = 2**30


@dataclass(frozen=True)
class Segment:
    """Query rows that attend to key columns: row i sees column j when i + low <= j <= i + high."""

    q_start: int
    q_length: int
    kv_start: int
    kv_length: int
    low: int = -FAR
    high: int = FAR


@dataclass(frozen=True)
class IntegerProducts:
    """int8 arithmetic: the factors of Q K^T, of the weights before rounding, of weights times V."""

    scores: float
    probabilities: float
    values: float


@dataclass
class Problem:
    """One attention. Tensors are (B, heads, S, D); one batch entry may hold all segments (TND)."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    out: torch.Tensor  # zeroed, written in place
    segments: list[Segment]
    scale: float
    lse: torch.Tensor | None = None  # (B, N, S), filled with infinity
    mask: torch.Tensor | None = None  # (B or 1, 1, Sq, Skv) bool or uint8, nonzero = hidden
    bias: torch.Tensor | None = None  # (B or 1, N, Sq, Skv)
    sink: torch.Tensor | None = None  # (N,)
    integer: IntegerProducts | None = None
    #: (B, pages) int64: key and value are caches (blocks, heads, size, D); only for `natively`
    pages: torch.Tensor | None = None

    @property
    def columns(self) -> int:
        """How many tokens key and value hold."""
        size = self.key.shape[2]
        return size if self.pages is None else size * self.pages.shape[1]


def natively(problem: Problem) -> None:
    """The C++ kernel; int8 products and mixed dtypes stay with `in_blocks`."""
    p = problem
    plain = p.query.dtype == p.key.dtype == p.value.dtype == p.out.dtype
    if p.integer is not None or not plain or not p.query.is_floating_point():
        return in_blocks(p)
    stats = {}
    if p.lse is not None:
        peak = p.lse.new_full((*p.lse.shape, 1), _LOWEST)
        total = torch.ones_like(peak)
        stats = {"softmax_max": peak, "softmax_sum": total}
    torch.ops.softnpu.attention(
        p.query,
        p.key,
        p.value,
        p.out,
        **stats,
        scale=p.scale,
        mask=p.mask,
        bias=p.bias,
        sink=None if p.sink is None else p.sink.float(),
        q_start=[s.q_start for s in p.segments],
        q_len=[s.q_length for s in p.segments],
        kv_start=[s.kv_start for s in p.segments],
        kv_len=[s.kv_length for s in p.segments],
        band_low=[s.low for s in p.segments],
        band_high=[s.high for s in p.segments],
        pages=p.pages,
    )
    if p.lse is not None:
        found = (peak + total.log()).squeeze(-1)
        p.lse.copy_(found.masked_fill_(peak.squeeze(-1) <= _LOWEST, torch.inf))
    return None


def in_blocks(problem: Problem) -> None:
    """The formula in PyTorch, at most `BLOCK` scores (or one row of each head) at a time."""
    p = problem
    for batch, segment in _groups(p):
        rows = slice(segment.q_start, segment.q_start + segment.q_length)
        columns = slice(segment.kv_start, segment.kv_start + segment.kv_length)
        queries = batch if p.query.shape[0] > 1 else slice(0, 1)
        keys = batch if p.key.shape[0] > 1 else slice(0, 1)
        _segment(
            p,
            segment,
            p.query[queries, :, rows],
            p.key[keys, :, columns],
            p.value[keys, :, columns],
            p.out[queries, :, rows],
            None if p.lse is None else p.lse[queries, :, rows],
            _of_batch(p.mask, batch),
            _of_batch(p.bias, batch),
        )


_LOWEST = torch.finfo(torch.float32).min


def _groups(p: Problem) -> Iterator[tuple[slice, Segment]]:
    """Batch entries that can be computed together: all of them where their segments are alike."""
    alike = len(set(p.segments)) == 1
    if alike and len(p.segments) == p.query.shape[0] and len(p.segments) == p.key.shape[0]:
        yield slice(None), p.segments[0]
        return
    for index, segment in enumerate(p.segments):
        yield slice(index, index + 1), segment


def _of_batch(tensor: torch.Tensor | None, batch: slice) -> torch.Tensor | None:
    return tensor if tensor is None or tensor.shape[0] == 1 else tensor[batch]


def _segment(p, segment, query, key, value, out, lse, mask, bias) -> None:
    key, value = wide(key), wide(value)
    batch, heads, rows, _ = query.shape
    columns = key.shape[2]
    step = max(1, BLOCK // max(1, batch * heads * columns))
    for top in range(0, rows, step):
        bottom = min(rows, top + step)
        left = max(0, top + segment.low)
        right = min(columns, bottom + segment.high)
        if right <= left:
            continue
        factor = p.scale if p.integer is None else p.scale * p.integer.scores
        scores = _grouped(wide(query[:, :, top:bottom]), key[:, :, left:right].mT).mul_(factor)
        if bias is not None:
            scores += bias[:, :, top:bottom, left:right]
        if mask is not None:
            hidden = mask[:, :, top:bottom, left:right]
            scores.masked_fill_(hidden if hidden.dtype == torch.bool else hidden != 0, -torch.inf)
        if top + segment.high < right - 1 or bottom - 1 + segment.low > left:
            scores.masked_fill_(_outside(segment, top, bottom, left, right, key), -torch.inf)
        _attend(p, scores, value[:, :, left:right], out[:, :, top:bottom], lse, slice(top, bottom))


def _outside(segment, top, bottom, left, right, like) -> torch.Tensor:
    rows = torch.arange(top, bottom, device=like.device).unsqueeze(1)
    distance = torch.arange(left, right, device=like.device) - rows
    return (distance < segment.low) | (distance > segment.high)


def _attend(p, scores, value, out, lse, rows) -> None:
    """Softmax of the scores (overwritten) and its product with V, for one block of rows."""
    peak = scores.amax(-1, keepdim=True)
    if p.sink is not None:
        sink = wide(p.sink).view(-1, 1, 1)
        peak = torch.maximum(peak, sink)
    peak = peak.masked_fill(peak == -torch.inf, 0)
    weights = scores.sub_(peak).exp_()
    total = weights.sum(-1, keepdim=True)
    if p.sink is not None:
        total = total + (sink - peak).exp()
    if p.integer is None:
        found = _grouped(weights, value)
    else:
        weights = (weights * p.integer.probabilities).round_().clamp_(-128, 127)
        found = _grouped(weights.double(), value.double()) * p.integer.values
    empty = total == 0
    out.copy_(found.div_(total.masked_fill(empty, 1)))
    if lse is not None:
        lse[:, :, rows] = (peak + total.log()).masked_fill_(empty, torch.inf).squeeze(-1)


def _grouped(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """(B, N, r, k) @ (B, Nkv, k, c): each head of the right serves N / Nkv of the left."""
    batch, heads, rows, inner = left.shape
    stacked = left.reshape(batch, right.shape[1], -1, inner)
    return (stacked @ right).view(batch, heads, rows, right.shape[3])
