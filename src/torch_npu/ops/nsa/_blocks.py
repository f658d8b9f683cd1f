"""What the operators of native sparse attention share: sequences, windows, the importance of blocks, softmax.

After https://arxiv.org/abs/2502.11089. A window of `compress_block_size` keys every `compress_stride` keys becomes one
compressed key; a selected block is `select_block_size` keys of the original sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from torch_npu.ops import _check as must

#: what hidden scores become on the card: a row whose keys are all hidden weighs them alike
HIDDEN = torch.finfo(torch.float32).min
HALF = (torch.float16, torch.bfloat16)
COPIES = 8  # of each row's largest score and sum
UNIT = 16
WIDEST = 768  # a head of the training operators


def spans(ends: Sequence[int]) -> list[tuple[int, int]]:
    """(start, end) of sequences that lie one after the other, by their ends."""
    return list(zip([0, *ends[:-1]], ends, strict=True))


def of_lengths(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(start, end) of sequences that lie one after the other, by their lengths."""
    found, start = [], 0
    for length in lengths:
        found.append((start, start + length))
        start += length
    return found


def windows(ends: Sequence[int], size: int, stride: int, rows: int) -> list[int]:
    """Where each window of each sequence begins; sequences end with the rows, whatever is said."""
    size = max(size, 1)
    return [
        first
        for start, end in spans([min(max(end, 0), rows) for end in ends])
        if end - start >= size
        for first in range(start, end - size + 1, stride)
    ]


def softmax(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights, largest score and sum of each row; hidden scores are HIDDEN."""
    largest = scores.amax(-1, keepdim=True)
    weights = (scores - largest).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / total, largest, total


def importance(
    weights: torch.Tensor, blocks: int, step: int, overlap: int, first: int
) -> torch.Tensor:
    """(..., compressed keys) -> (..., blocks): how much weight each block of `step` compressed keys has.

    Block j sums the weights at (j + 1) * step - first - m - n for m below `step` and n below `overlap`.
    """
    keys = weights.shape[-1]
    out = weights.new_zeros((*weights.shape[:-1], blocks))
    ends = (torch.arange(blocks, device=weights.device) + 1) * step - first
    for back in _backs(keys, blocks, step, overlap, first):
        times = min(back + 1, step + overlap - 1 - back, step, overlap)
        at = ends - back
        seen = (at >= 0) & (at < keys)
        out += times * weights[..., at.clamp(0, keys - 1)] * seen
    return out


def _backs(keys: int, blocks: int, step: int, overlap: int, first: int) -> Iterable[int]:
    """How far before a block's end a key may be: each distance once, at most those at which there is a key."""
    most = max(step + overlap - 1, 0)
    if most <= blocks * keys:
        return range(most)
    ends = [(block + 1) * step - first for block in range(blocks)]
    return sorted({b for e in ends for b in range(max(e - keys + 1, 0), min(e + 1, most))})


def stats_dtype(query: torch.Tensor) -> torch.dtype:
    """Of the largest scores and the sums: float32, or float64 where everything is."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def grouped(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(rows, N, D) -> (heads, rows, group, D): the heads of a query by the key's head that serves them."""
    return x.unflatten(1, (heads, -1)).transpose(0, 1)


def sequences(q_ends: Sequence[int], kv_ends: Sequence[int]) -> Iterator[tuple[slice, slice]]:
    """The rows of query and of key of each sequence."""
    for (q0, q1), (k0, k1) in zip(spans(q_ends), spans(kv_ends), strict=True):
        yield slice(q0, q1), slice(k0, k1)


# --- constraints ---------------------------------------------------------------------------------------------


def check_size(name: str, value: int, most: int, what: str = "") -> None:
    """The number, or `what` the argument has, is a multiple of 16."""
    ok = UNIT <= value <= most and value % UNIT == 0
    must.hold(ok, name, f"{what}a multiple of {UNIT} up to {most}", value)


def check_ends(
    name: str, given: Sequence[int] | None, total: int, of: str, whole: bool = True
) -> None:
    """Rising sums; `whole`: they end at the rows, otherwise the rows behind them belong to no sequence."""
    ends = must.present(name, given, "(the ends of the sequences)")
    ok = len(ends) > 0 and all(a <= b for a, b in zip([0, *ends], ends, strict=False))
    must.hold(ok, name, "not empty and ascending", list(ends))
    fits = ends[-1] == total if whole else ends[-1] <= total
    must.hold(fits, name, f"ending at the rows of '{of}' ({total})", ends[-1])


def check_attention(query, key, value, head_num, most_group: int) -> None:
    """TND operands of one dtype, heads in whole groups."""
    must.dtype("query", query, *HALF)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        must.same_dtype(name, tensor, "query", query)
        must.ndim(name, tensor, 3)
    must.hold(
        head_num == query.shape[1], "head_num", f"the heads of query ({query.shape[1]})", head_num
    )
    width = query.shape[2]
    must.hold(0 < width <= WIDEST, "query", f"of a head size of 1 to {WIDEST}", width)
    must.shape("key", key, (None, None, width))
    must.shape("value", value, (*key.shape[:2], None))
    must.hold(
        value.shape[2] <= key.shape[2],
        "value",
        f"of width up to {key.shape[2]}",
        tuple(value.shape),
    )
    heads = key.shape[1]
    ok = heads > 0 and head_num % heads == 0 and head_num // heads <= most_group
    must.hold(
        ok, "key", f"of heads that divide {head_num} into groups of at most {most_group}", heads
    )


def check_mask(name: str, mask: torch.Tensor | None) -> None:
    must.dtype(name, mask, torch.bool, torch.uint8)
    must.ndim(name, mask, 2)


def check_table(table: torch.Tensor, lengths: Sequence[int], page: int, blocks: int) -> None:
    """The entries of a block table that the lengths need are numbers of blocks."""
    if not must.has_data(table):
        return
    for row, length in zip(table, lengths, strict=True):
        used = row[: -(-length // page)]
        if used.numel():
            low, high = int(used.min()), int(used.max())
            ok = low >= 0 and high < blocks
            must.hold(ok, "block_table", f"of blocks in [0, {blocks})", f"{low} to {high}")
