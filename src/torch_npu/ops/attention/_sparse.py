"""What the sparse attentions and their indexers share: layouts, lengths, the keys of a sequence, causal edges.

| layout | query | key | lengths |
|---|---|---|---|
| BSND | (B, S, N, D) | (B, S, N, D) | of each sequence; all of S without them |
| TND | (T, N, D) | (T, N, D) | sums of the lengths |
| PA_BSND | | (blocks, block, N, D), `block_table` | of each sequence |
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from softnpu import chips
from torch_npu import _errors
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must

FOREVER = 2**63 - 1

#: elements that a block of gathered keys or of scores may have
BLOCK = 2**22


@dataclass(frozen=True)
class Span:
    """One sequence: its query tokens among all (T, N, D) and its keys."""

    index: int
    start: int
    rows: int
    kv_start: int
    columns: int

    def edge(self, mode: int, top: int) -> int:
        """The keys that query `top` of the sequence sees, by sparse_mode 0 (all) or 3 (right-down causal)."""
        return self.columns if mode == 0 else max(0, self.columns - self.rows + top + 1)


def spans(query, key, layout, kv_layout, lengths, kv_lengths) -> list[Span]:
    """The sequences; `lengths` and `kv_lengths` are tensors or lists, or None where the layout allows.

    Lengths come from data. `check` refuses wrong ones; without it they end where the tensors end.
    """
    q_spans = _sequences(query, layout, _numbers(lengths))
    k_spans = _sequences(key, kv_layout, _numbers(kv_lengths))
    return [Span(i, *q, *k) for i, (q, k) in enumerate(zip(q_spans, k_spans, strict=True))]


def _sequences(tensor, layout, lengths) -> list[tuple[int, int]]:
    """First token and number of tokens of each sequence."""
    if layout == "TND":
        ends = [min(max(n, 0), tensor.shape[0]) for n in lengths]
        return [(a, max(b - a, 0)) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    batch, size = tensor.shape[:2]
    if layout == "PA_BSND":
        return [(0, min(max(n, 0), batch * size)) for n in lengths]
    return [(b * size, min(max(n, 0), size)) for b, n in enumerate(lengths or [size] * batch)]


def _numbers(lengths):
    if isinstance(lengths, torch.Tensor):
        return lengths.tolist()
    return None if lengths is None else [int(n) for n in lengths]


def tokens(tensor: torch.Tensor) -> torch.Tensor:
    """(B, S, ...) or (T, ...) rows, T first: leading dimensions but the last two (heads, size) flattened."""
    return tensor.reshape(-1, *tensor.shape[-2:])


def keys(key: torch.Tensor, span: Span, kv_layout: str, table: torch.Tensor | None) -> torch.Tensor:
    """The keys (columns, N, D) of one sequence."""
    if kv_layout != "PA_BSND":
        return tokens(key)[span.kv_start : span.kv_start + span.columns]
    return key[pages_of(key, span, table)].flatten(0, 1)[: span.columns]


def pages_of(key: torch.Tensor, span: Span, table: torch.Tensor | None) -> torch.Tensor:
    """The pages of one sequence, int64."""
    assert table is not None  # PA_BSND has a block table
    ids = table[span.index, : -(-span.columns // key.shape[1])].long()
    _check_pages(key, ids)
    return ids


def page_numbers(key: torch.Tensor, every: list[Span], table: torch.Tensor | None) -> torch.Tensor:
    """The table as int64, 0 where no sequence has a page."""
    assert table is not None
    counts = torch.zeros(table.shape[0], 1, dtype=torch.int64)
    for span in every:
        counts[span.index] = -(-span.columns // key.shape[1])
    ids = table.long().masked_fill(torch.arange(table.shape[1]) >= counts, 0)
    _check_pages(key, ids)
    return ids


def _check_pages(key: torch.Tensor, ids: torch.Tensor) -> None:
    blocks = key.shape[0]
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < blocks:
        expected = f"of block numbers from 0 to {blocks - 1}"
        raise _errors.BadArgument("block_table", expected, ids.tolist(), ErrCode.VALUE)


def steps(rows: int, each: int):
    """Slices of rows such that `each` elements a row stay below BLOCK."""
    step = max(1, BLOCK // max(1, each))
    return [slice(top, min(rows, top + step)) for top in range(0, rows, step)]


def hidden(span: Span, mode: int, part: slice, columns: torch.Tensor) -> torch.Tensor:
    """Which of the (rows, n) or (n,) key positions the rows of `part` do not see."""
    row = torch.arange(part.start, part.stop, device=columns.device).unsqueeze(1)
    if mode == 0:
        return (columns >= span.columns).expand(len(row), columns.shape[-1])
    return columns > span.columns - span.rows + row


# --- constraints ----------------------------------------------------------------------------------------


def check_layouts(query, key, layout, kv_layout, lengths, kv_lengths, table, names):
    """Layouts, ranks and the lengths that they need.

    `names` are those of the operator's arguments: the lengths of queries and keys, the layouts of queries and keys.
    """
    name, kv_name = names[2:]
    must.choice(name, layout, ("BSND", "TND"))
    must.choice(kv_name, kv_layout, ("BSND", "TND", "PA_BSND"))
    paged = kv_layout == "PA_BSND"
    if not paged:
        must.hold(kv_layout == layout, kv_name, f"{layout!r}, as {name!r}", kv_layout)
        must.hold(table is None, "block_table", f"None with {kv_name} {kv_layout!r}", "a tensor")
    must.ndim("query", query, 4 if layout == "BSND" else 3)
    must.ndim("key", key, 3 if kv_layout == "TND" else 4)
    for side, tensor in (("query", query), ("key", key)):
        must.hold(tensor.numel() > 0, side, "not empty", tuple(tensor.shape), ErrCode.PARAM)
    if layout == "TND":
        must.present(names[0], lengths, f"with {name} 'TND'")
    if kv_layout != "BSND":
        must.present(names[1], kv_lengths, f"with {kv_name} {kv_layout!r}")
    for side, given in ((names[0], lengths), (names[1], kv_lengths)):
        must.ndim(side, given, 1)
    batch = query.shape[0] if layout == "BSND" else lengths.shape[0]
    for side, given in ((names[0], lengths), (names[1], kv_lengths)):
        must.dtype(side, given, torch.int32)
        must.shape(side, given, (batch,))
    if paged:
        block = key.shape[1]
        fine = block % 16 == 0 and block <= 1024
        must.hold(fine, "key", "of blocks of a multiple of 16 tokens, at most 1024", block)
        must.present("block_table", table, f"with {kv_name} 'PA_BSND'")
        must.dtype("block_table", table, torch.int32)
        must.shape("block_table", table, (batch, None))
    _check_numbers(query, key, layout, kv_layout, lengths, kv_lengths, table, names)


def _check_numbers(query, key, layout, kv_layout, lengths, kv_lengths, table, names):
    sides = (
        (names[0], lengths, layout, query.shape[0 if layout == "TND" else 1]),
        (names[1], kv_lengths, kv_layout, None if kv_layout == "PA_BSND" else key.shape[0 if kv_layout == "TND" else 1]),
    )  # fmt: skip
    for name, given, kind, most in sides:
        if not must.has_data(given):
            continue
        numbers = given.tolist()
        if kind == "TND":
            must.hold(numbers == sorted(numbers), name, "sums of lengths", numbers)
        if most is None:
            most = table.shape[1] * key.shape[1]
        fine = min(numbers, default=0) >= 0 and max(numbers, default=0) <= most
        must.hold(fine, name, f"from 0 to {most}", numbers)


def check_tokens_limits(pre_tokens, next_tokens):
    for name, value in (("pre_tokens", pre_tokens), ("next_tokens", next_tokens)):
        must.hold(value == FOREVER, name, f"left at {FOREVER}", value)


def default(value, other):
    """An optional argument's value, or what upstream takes for None."""
    return other if value is None else value


def new_chip() -> bool:
    return chips.current().family == "A5"


def check_family(argument, *families):
    """The operator exists on the chip."""
    chip = chips.current()
    expected = f"on a chip of series {must.one_of(families)}"
    received = f"a tensor on {chip.name} ({chip.family})"
    must.hold(chip.family in families, argument, expected, received, ErrCode.NOT_SUPPORT)
