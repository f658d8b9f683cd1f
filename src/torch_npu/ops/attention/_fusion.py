"""Training attention, what npu_fusion_attention and its versions share: the problem and what operators return.

The formula is in `_fusion_formula`, its native form in `_fusion_native`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from torch_npu.ops.attention import _dropout, _layouts, _masks

#: what a row that attends to nothing has for its largest score and its sum, as on the card
EMPTY = torch.finfo(torch.float32).max

MUL_ADD, ADD_MUL, ALIBI, ALIBI_SQRT = range(4)  # pse_type


@dataclass
class Attention:
    """The arguments of a call under one name each, and what follows from them."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    head_num: int
    input_layout: str
    pse: torch.Tensor | None = None
    padding_mask: torch.Tensor | None = None
    atten_mask: torch.Tensor | None = None
    query_rope: torch.Tensor | None = None
    key_rope: torch.Tensor | None = None
    scale: float = 1.0
    keep_prob: float = 1.0
    pre_tokens: int = 2147483647
    next_tokens: int = 2147483647
    inner_precise: int = 0
    prefix: Sequence[int] | None = None
    actual_seq_qlen: Sequence[int] | None = None
    actual_seq_kvlen: Sequence[int] | None = None
    sparse_mode: int = 0
    gen_mask_parallel: bool = True
    sync: bool = False
    pse_type: int = ADD_MUL
    q_start_idx: Sequence[int] | None = None
    kv_start_idx: Sequence[int] | None = None
    softmax_layout: str = ""
    sink: torch.Tensor | None = None
    dropout_mask: torch.Tensor | None = None
    seed: int = 0
    offset: int = 0
    before: str = "pre_tokens"  # what the operator calls this argument
    after: str = "next_tokens"

    def draw(self, at_replay: bool = False) -> None:
        """Chooses seed and offset before a forward; `at_replay`: anew in every replay of a captured graph."""
        if self.keep_prob < 1:
            given = self.dropout_mask is not None
            self.seed, self.offset = _dropout.choose(self.seed, self.offset, given, at_replay)

    @cached_property
    def layout(self) -> str:
        return self.input_layout.upper()

    @cached_property
    def heads(self) -> int:
        return _layouts.head_counts(self.query, self.key, self.layout, self.head_num)[0]

    @cached_property
    def kv_heads(self) -> int:
        return _layouts.head_counts(self.query, self.key, self.layout, self.head_num)[1]

    @cached_property
    def q(self) -> torch.Tensor:
        """The query as (B, N, Sq, D), its rope part at the end of D."""
        return self._with_rope(self.query, self.query_rope, self.heads)

    @cached_property
    def k(self) -> torch.Tensor:
        return self._with_rope(self.key, self.key_rope, self.kv_heads)

    @cached_property
    def v(self) -> torch.Tensor:
        return _layouts.heads_first(self.value, self.layout, self.kv_heads)

    def _with_rope(self, x, rope, heads) -> torch.Tensor:
        parts = [_layouts.heads_first(t, self.layout, heads) for t in (x, rope) if t is not None]
        return parts[0] if rope is None else torch.cat(parts, -1)

    @cached_property
    def segments(self) -> list[_layouts.Segment]:
        tnd = self.layout == "TND"
        ends = (self.actual_seq_qlen, self.actual_seq_kvlen) if tnd else (None, None)
        return _layouts.segments(self.q, self.k, *ends)

    @cached_property
    def bands(self) -> list[_masks.Band]:
        if self.atten_mask is None:  # then every mode computes everything
            return [_masks.Band()] * len(self.segments)
        mode = self.sparse_mode
        if mode == _masks.PREFIX and not self.prefix_counts:
            mode = _masks.ALL
        prefix = None if self.prefix is None else list(self.prefix)
        return _masks.bands(self.segments, mode, self.pre_tokens, self.next_tokens, prefix)

    @cached_property
    def prefix_counts(self) -> bool:
        """Whether mode 5 has a prefix that the card takes; without one the mask alone counts."""
        return _masks.prefix_counts(self.prefix, self.segments)

    @property
    def longest(self) -> tuple[int, int]:
        """The longest query and the longest key of TND."""
        rows = [s.q_length for s in self.segments]
        return max(rows, default=0), max((s.kv_length for s in self.segments), default=0)

    @property
    def totals(self) -> tuple[int, int]:
        """The rows of TND's queries and of its keys that belong to a sequence."""
        return sum(s.q_length for s in self.segments), sum(s.kv_length for s in self.segments)

    @property
    def nothing(self) -> bool:
        """Whether there are no queries or no keys: then the card writes zeros."""
        return self.query.numel() == 0 or self.key.numel() == 0

    @cached_property
    def mask(self) -> torch.Tensor | None:
        """The mask whose content counts, (B or 1, N or 1, Sq, Skv); a compressed one says no more than the band."""
        if self.atten_mask is None or self.sparse_mode in _masks.COMPRESSED:
            return None
        if self.atten_mask.dim() == 4:
            return self.atten_mask
        if self.layout == "TND" and self.atten_mask.shape != self.longest:
            return _masks.of_sequences(self.atten_mask, self.segments, self.longest)
        return self.atten_mask[None, None]

    @property
    def numels(self) -> int:
        """The positions that dropout may clear."""
        return self.heads * sum(s.q_length * s.kv_length for s in self.segments)

    @property
    def covered(self) -> bool:
        """Whether every row of query, key and value belongs to a segment."""
        if self.layout != "TND":
            return True  # without a look at the segments: their number may be symbolic
        last = self.segments[-1] if self.segments else _layouts.Segment(0, 0, 0, 0)
        return (
            last.q_start + last.q_length == self.q.shape[2]
            and last.kv_start + last.kv_length == self.k.shape[2]
        )

    @property
    def slopes(self) -> torch.Tensor | None:
        """ALiBi's slopes, (B or 1, N)."""
        if self.pse is None or self.pse_type < ALIBI:
            return None
        return self.pse if self.pse.dim() == 2 else self.pse[None]

    @property
    def shift(self) -> int:
        """How far the first key lies behind the first query in the whole sequence."""
        first = [0 if not index else index[0] for index in (self.q_start_idx, self.kv_start_idx)]
        return first[1] - first[0]

    @property
    def bias_scale(self) -> float:
        return self.scale if self.pse_type == ADD_MUL else 1.0

    @property
    def toeplitz(self) -> bool:
        """Whether pse holds only the last rows of an ALiBi matrix."""
        rows = 0 if self.pse is None or self.pse.dim() != 4 else self.pse.shape[2]
        return rows > 1 and (self.layout == "TND" or rows != self.q.shape[2])

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A gradient's memory: zeros where some rows belong to no segment."""
        whole = self.covered and not self.nothing
        return tensor.new_empty(tensor.shape) if whole else tensor.new_zeros(tensor.shape)

    def outputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Memory for attention_out, softmax_max and softmax_sum, the latter as rows of heads."""
        whole = self.covered and not self.nothing
        make = self.query.new_empty if whole else self.query.new_zeros
        stats = _layouts.stats_shape(self.query, self.layout, self.heads)
        exact = torch.float64 if self.query.dtype == torch.float64 else torch.float32
        shape = _layouts.output_shape(self.query, self.layout, self.heads, self.v.shape[3])
        return make(shape), make(stats, dtype=exact), make(stats, dtype=exact)

    def as_rows(self, stats: torch.Tensor) -> torch.Tensor:
        """softmax_max or softmax_sum as (B, N, S, 8), given with its heads by row."""
        return stats.transpose(0, 1).unsqueeze(0) if self.layout == "TND" else stats

    def stored(self, stats: torch.Tensor) -> torch.Tensor:
        """softmax_max or softmax_sum in the order that the caller sees."""
        if self.layout != "TND" or self.softmax_layout == "TND":
            return stats
        return _layouts.rows_by_head(stats, self.segments)

    def loaded(self, stats: torch.Tensor) -> torch.Tensor:
        """The inverse of `stored`, as (B, N, S, 8)."""
        if self.layout == "TND" and self.softmax_layout != "TND":
            stats = _layouts.heads_by_row(stats, self.segments)
        return self.as_rows(stats)


@dataclass
class Saved:
    """What a gradient is computed from besides the forward's arguments."""

    dy: torch.Tensor
    softmax_max: torch.Tensor | None = None
    softmax_sum: torch.Tensor | None = None
    softmax_in: torch.Tensor | None = None
    attention_in: torch.Tensor | None = None
    numels: int | None = None

    def of_forward(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """softmax_max, softmax_sum and attention_in, which the gradients' check requires."""
        peak, total, out = self.softmax_max, self.softmax_sum, self.attention_in
        assert peak is not None and total is not None and out is not None
        return peak, total, out


class Gradients:
    """Memory for the gradients: in the caller's layout, and as views that kernels write."""

    def __init__(self, a: Attention) -> None:
        self.a = a
        exact = torch.float64 if a.query.dtype == torch.float64 else torch.float32
        self.whole = [a.empty_like(a.query), a.empty_like(a.key), a.empty_like(a.value)]
        roped = a.query_rope is not None
        counts = (a.heads, a.kv_heads, a.kv_heads)
        views = [
            _layouts.heads_first(t, a.layout, n) for t, n in zip(self.whole, counts, strict=True)
        ]
        self.dq, self.dk = (a.empty_like(a.q), a.empty_like(a.k)) if roped else views[:2]
        self.dv = views[2]
        self.views = views
        self.dpse = None if a.pse is None else a.pse.new_zeros(a.pse.shape, dtype=exact)
        self.dsink = None if a.sink is None else a.sink.new_zeros(a.sink.shape, dtype=exact)

    def by_name(self) -> dict[str, torch.Tensor | None]:
        a = self.a
        query, key, value = self.whole
        return {
            "query": query,
            "key": key,
            "value": value,
            "query_rope": self._rope(self.views[0], a.query_rope, self.dq, a.heads),
            "key_rope": self._rope(self.views[1], a.key_rope, self.dk, a.kv_heads),
            "pse": None if self.dpse is None or a.pse is None else self.dpse.to(a.pse.dtype),
            "sink": None if self.dsink is None or a.sink is None else self.dsink.to(a.sink.dtype),
        }

    def _rope(self, view, rope, joined, heads) -> torch.Tensor | None:
        """The gradient of a rope part; `view`, the other part of the joined gradient, is written."""
        if rope is None:
            return None
        view.copy_(joined[..., : view.shape[3]])
        found = torch.empty_like(rope, memory_format=torch.contiguous_format)
        _layouts.heads_first(found, self.a.layout, heads).copy_(joined[..., view.shape[3] :])
        return found


def no_gradients(a: Attention, saved: Saved) -> dict[str, torch.Tensor | None]:
    """The shapes of the gradients."""
    return Gradients(a).by_name()


# --- as operators return them -------------------------------------------------------------------------------------


def seven_outputs(
    a: Attention, compute: Callable[..., tuple[torch.Tensor, ...]]
) -> tuple[Any, ...]:
    """attention_out, softmax_max, softmax_sum, nothing, seed, offset and numels."""
    a.draw()
    return (*compute(a), a.query.new_empty(0), a.seed, a.offset, a.numels)


#: the order in which the named gradients return
FIVE = ("query", "key", "value", "pse", "sink")
WITH_ROPE = ("query", "key", "value", "pse", "query_rope", "key_rope", "sink")


def gradients(
    a: Attention, saved: Saved, compute: Callable[..., dict[str, Any]], order: Sequence[str] = FIVE
) -> tuple[torch.Tensor, ...]:
    """The gradients by name in order; an empty tensor for what was not given."""
    found = compute(a, saved)
    return tuple(_given(a, name, found[name]) for name in order)


def _given(a: Attention, name: str, gradient: torch.Tensor | None) -> torch.Tensor:
    dtype = torch.float32 if name == "sink" else a.query.dtype
    return a.query.new_empty(0, dtype=dtype) if gradient is None else gradient
