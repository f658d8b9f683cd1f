"""The documented constraints of the inference attentions, feature by feature.

Every function takes the `InferArguments` and raises through `_check`; an operator's `check` picks those that
its page has. Lengths are only compared where they are plain integers (under symbolic shapes they
may not be).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops.attention._infer_arguments import LAYOUTS, InferArguments, each, sizes

FLOATS = (torch.float16, torch.bfloat16)
CACHES = (*FLOATS, torch.int8, torch.int32)

MAX_BATCH, MAX_HEADS, MAX_SIZE, MAX_GROUP = 65536, 256, 512, 64
MAX_TOKENS, MAX_DECODE_TOKENS, MAX_RAGGED_BATCH = 20971520, 262144, 65536


def product(call: InferArguments, *families: str) -> None:
    """The operator exists on the chip."""
    chip = chips.current()
    must.hold(
        chip.family in families,
        "query",
        f"on a chip of series {must.one_of(families)}",
        f"a tensor on {chip.name} ({chip.family})",
        ErrCode.NOT_SUPPORT,
    )


def absent(call: InferArguments, reason: str, *arguments: str) -> None:
    """Arguments that a feature excludes."""
    for argument in arguments:
        value = getattr(call, argument)
        given = tuple(value.shape) if isinstance(value, torch.Tensor) else value
        must.hold(value is None or value is False, call.name(argument), f"left out {reason}", given)


def layout(call: InferArguments, allowed: Sequence[str] = tuple(LAYOUTS)) -> None:
    """The layout is known, and query, key and value have its dimensions."""
    must.choice("input_layout", call.input_layout, allowed)
    must.hold(call.num_heads > 0, call.name("num_heads"), "positive", call.num_heads)
    must.ndim("query", call.query, 4 if call.layout in ("BSND", "BNSD") else 3)
    rank = (3, 5) if call.paged else (call.query.dim(), call.query.dim())
    for argument in ("key", "value"):
        must.ndim(argument, getattr(call, argument), *rank)


def heads(call: InferArguments, limited: bool = True, most: int | None = MAX_HEADS) -> None:
    """Head counts agree with the tensors, and one divides the other; `limited`: within limits.

    `most`: how many heads the query has; without it as many as the caches allow.
    """
    _, count, _, size = call.queries
    name, kv_name = call.name("num_heads"), "num_key_value_heads"
    must.hold(
        count == call.num_heads, name, f"the query's number of heads ({count})", call.num_heads
    )
    must.hold(not limited or most is None or count <= most, name, f"at most {most}", count)
    if call.layout == "BSH":
        width = call.query.shape[2]
        must.hold(
            width % count == 0, name, f"a divisor of the query's H ({width})", count, ErrCode.PARAM
        )
    must.hold(call.num_key_value_heads >= 0, kv_name, "0 or positive", call.num_key_value_heads)
    must.hold(count % call.kv_heads == 0, kv_name, f"a divisor of {count}", call.kv_heads)
    fits = not limited or call.kv_heads <= MAX_HEADS
    must.hold(fits, kv_name, f"at most {MAX_HEADS}", call.kv_heads)
    free = not limited or call.query_rope is not None
    must.hold(
        free or count // call.kv_heads <= MAX_GROUP,
        kv_name,
        f"at least {name} / {MAX_GROUP}",
        call.kv_heads,
    )
    must.hold(
        0 < size <= MAX_SIZE, "query", f"of a head size from 1 to {MAX_SIZE}", size, ErrCode.PARAM
    )


def caches(call: InferArguments, limited: bool = True, tokens: bool = True) -> None:
    """Key and value fit the query and each other (contiguous caches; pages have their own rule).

    Not `limited`: head sizes and lengths have another rule. Not `tokens`: any number of tokens.
    """
    must.same_dtype("value", call.value, "key", call.key)
    if call.paged:
        return
    batch, _, _, size = call.queries
    key, value = (sizes(c, call.layout, call.kv_heads) for c in (call.key, call.value))
    for argument, found in (("key", key), ("value", value)):
        same = found[0] == batch and found[1] == call.kv_heads and found[2] == key[2]
        must.hold(
            same,
            argument,
            f"of (B, N, S) = {(batch, call.kv_heads, key[2])}",
            found[:3],
            ErrCode.PARAM,
        )
    if not limited:
        return
    must.hold(
        key[3] * call.packed == size,
        "key",
        f"of head size {size}",
        key[3] * call.packed,
        ErrCode.PARAM,
    )
    mixed = call.ragged or chips.current().family == "A5"
    must.hold(
        mixed or value[3] == key[3],
        "value",
        f"of the key's head size ({key[3]})",
        value[3],
        ErrCode.PARAM,
    )
    limit = MAX_DECODE_TOKENS if call.decode else MAX_TOKENS
    fits = not tokens or key[2] <= limit
    must.hold(fits, "key", f"of at most {limit} tokens", key[2], ErrCode.PARAM)


def extents(
    call: InferArguments, align: int, prompt_only: bool = False, tokens: bool = True
) -> None:
    """Batch and sequence limits; the alignment of the head size (in values, for float caches).

    Not `tokens`: any number of tokens.
    """
    batch, _, rows, size = call.queries
    floats = call.key.dtype not in (torch.int8, torch.int32)
    fits = not tokens or rows <= MAX_TOKENS
    must.hold(fits, "query", f"of at most {MAX_TOKENS} tokens", rows, ErrCode.PARAM)
    loose = size * 2 % 32 != 0 and floats
    most = 128 if loose and not call.decode else MAX_BATCH
    must.hold(batch <= most, "query", f"of at most {most} sequences", batch, ErrCode.PARAM)
    if prompt_only and call.decode:
        return
    step = align if floats else 64 if call.key.dtype == torch.int32 else 32
    must.hold(size % step == 0, "query", f"of a head size divisible by {step}", size, ErrCode.PARAM)


def lengths(call: InferArguments) -> None:
    """actual_seq_lengths and actual_seq_lengths_kv."""
    batch, _, rows, _ = call.queries
    names = call.name("actual_seq_lengths"), call.name("actual_seq_lengths_kv")
    given = call.actual_seq_lengths, call.actual_seq_lengths_kv
    if call.ragged:
        ends, kv_ends = (
            must.present(name, values, f"for layout {call.input_layout}")
            for name, values in zip(names, given, strict=True)
        )
        count = len(ends)
        expected = f"of 1 to {MAX_RAGGED_BATCH} entries"
        must.hold(1 <= count <= MAX_RAGGED_BATCH, names[0], expected, count)
        must.hold(len(kv_ends) == count, names[1], f"of {count} entries", len(kv_ends))
        _cumulative(names[0], ends, rows)
        if not call.paged:
            _cumulative(names[1], kv_ends, sizes(call.key, call.layout, call.kv_heads)[2])
        return
    if not call.decode:
        bounded(names[0], given[0], batch, rows)
    if not call.paged:
        bounded(names[1], given[1], batch, call.key_sizes[2])


def bounds(call: InferArguments) -> list[tuple[str, int, int]]:
    """What `lengths` and `paged` ask of lengths that are not cumulative: (argument, sequences, tokens at most)."""
    batch, _, rows, _ = call.queries
    most = call.capacity if call.paged else call.key_sizes[2]
    found = [(call.name("actual_seq_lengths_kv"), batch, most)]
    return found if call.decode else [(call.name("actual_seq_lengths"), batch, rows), *found]


def bounded(name: str, values: Sequence[int] | None, batch: int, most: int) -> None:
    """Lengths: one for all sequences or one each, of at most so many tokens."""
    if values is None:
        return
    must.hold(
        len(values) == 1 or len(values) >= batch, name, f"of 1 or {batch} entries", len(values)
    )
    for value in values if len(values) <= batch else each(values, batch):
        if isinstance(value, int) and not 0 <= value <= most:
            must.hold(False, name, f"from 0 to {most}", value)


def _cumulative(name: str, values: Sequence[int], most: int) -> None:
    before = 0
    for value in values:
        if not isinstance(value, int):
            return
        if not before <= value <= most:
            must.hold(False, name, f"cumulative (from {before} to {most} here)", value)
        before = value


def paged(
    call: InferArguments, floats: Callable[[InferArguments], tuple[bool, str]] | None = None
) -> None:
    """Block table, block size and the shape of the cache; `floats` judges the size of float pages.

    `floats` is the rule of the fused attentions, whose float pages may be of any form.
    """
    if not call.paged:
        must.hold(call.block_size >= 0, "block_size", "0 or positive", call.block_size)
        return
    must.dtype("block_table", call.block_table, torch.int32)
    must.ndim("block_table", call.block_table, 2)
    assert call.block_table is not None
    rows, least = call.block_table.shape[0], call.batch
    fits = rows == least if call.ragged else rows >= least
    must.hold(fits, "block_table", f"of {least} rows", rows, ErrCode.PARAM)
    name = call.name("actual_seq_lengths_kv")
    must.present(name, call.actual_seq_lengths_kv, "with block_table")
    loose = floats is not None and call.key.dtype in FLOATS
    fits, expected = floats(call) if floats is not None and loose else _block_size(call)
    must.hold(fits, "block_size", expected, call.block_size)
    size = call.queries[3]
    for argument in ("key", "value"):
        cache = getattr(call, argument)
        if argument == "value":
            must.shape(argument, cache, (*call.key.shape[:2], *(None for _ in call.key.shape[2:])))
            size = call.value_size
        must.shape(argument, cache, _page(call, cache, size))
    whole = loose or call.layout in ("BNSD", "TND", "NTD") or call.key.dim() != 4
    must.hold(
        whole,
        "key",
        f"(blocks, block_size, H) for layout {call.input_layout}",
        tuple(call.key.shape),
    )
    must.hold(
        call.key.dim() != 3 or call.key.shape[2] <= 65535,
        "key",
        "of H up to 65535",
        call.key.shape[-1],
    )
    bounded(name, call.actual_seq_lengths_kv, call.batch, call.capacity)
    absent(call, "with block_table", "query_padding_size", "kv_padding_size", "key_shared_prefix")


def _page(call: InferArguments, cache: torch.Tensor, size: int) -> tuple[int | None, ...]:
    heads, block, size = call.kv_heads, call.block_size, size // call.packed
    if cache.dim() == 3:
        return None, block, heads * size
    if cache.dim() == 4:
        return None, heads, block, size
    width = 32 // cache.element_size()
    return None, heads, size // width, block, width


def _block_size(call: InferArguments) -> tuple[bool, str]:
    size = call.block_size
    if call.key_format:
        step = 128 if call.query_format else 32 * call.packed
        fits = size > 0 and size % step == 0 and size <= (128 if call.query_format else 512)
        expected = "128" if call.query_format else f"a multiple of {step} up to 512"
    elif call.query_rope is not None or call.ragged:
        fits, expected = size > 0 and size % 16 == 0 and size <= 1024, "a multiple of 16 up to 1024"
    elif call.decode:
        step = 16 if call.key.dtype in FLOATS else 32
        fits = size > 0 and size % step == 0 and size <= 512
        expected = f"a multiple of {step} up to 512"
    else:
        fits, expected = size in (128, 256, 384, 512), "128, 256, 384 or 512"
    return fits, expected


def padding(call: InferArguments) -> None:
    """query_padding_size and kv_padding_size: one number, or one a sequence."""
    for argument in ("query_padding_size", "kv_padding_size"):
        given = getattr(call, argument)
        must.dtype(argument, given, torch.int64)
        if given is not None:
            counts = (1, call.batch)
            must.hold(given.numel() in counts, argument, "of 1 or B values", tuple(given.shape))


def padded_lengths(call: InferArguments) -> None:
    """Left padding asks for lengths (the fused attentions); one query token reads none of its own."""
    if call.query_padding_size is not None and not call.decode:
        name = call.name("actual_seq_lengths")
        must.present(name, call.actual_seq_lengths, "with query_padding_size")
    if call.kv_padding_size is not None:
        name = call.name("actual_seq_lengths_kv")
        must.present(name, call.actual_seq_lengths_kv, "with kv_padding_size")


def prefix(call: InferArguments) -> None:
    """The shared prefix."""
    pair = call.key_shared_prefix, call.value_shared_prefix
    if all(given is None for given in pair):
        must.hold(
            call.actual_shared_prefix_len is None,
            "actual_shared_prefix_len",
            "left out without key_shared_prefix",
            call.actual_shared_prefix_len,
        )
        return
    counts = []
    for argument, prefixes, cache in zip(
        ("key_shared_prefix", "value_shared_prefix"), pair, (call.key, call.value), strict=True
    ):
        given = must.present(argument, prefixes, "together with the other shared prefix")
        must.dtype(argument, given, cache.dtype)
        must.ndim(argument, given, cache.dim())
        _, count, tokens, size = sizes(cache, call.layout, call.kv_heads)
        found = sizes(given, call.layout, call.kv_heads)
        expected = f"of (B, N, S, D) = (1, {count}, *, {size})"
        same = (found[0], found[1], found[3]) == (1, count, size)
        must.hold(same, argument, expected, found, ErrCode.PARAM)
        limit = MAX_DECODE_TOKENS if call.decode else MAX_TOKENS
        must.hold(
            found[2] + tokens <= limit, argument, f"of at most {limit} tokens with key", found[2]
        )
        counts.append(found[2])
    must.hold(counts[0] == counts[1], "value_shared_prefix", f"of {counts[0]} tokens", counts[1])
    length = call.actual_shared_prefix_len
    if length is not None:
        fits = len(length) == 1 and (not isinstance(length[0], int) or 0 <= length[0] <= counts[0])
        must.hold(fits, "actual_shared_prefix_len", f"one number up to {counts[0]}", list(length))
    absent(call, "with a shared prefix", "query_padding_size", "kv_padding_size", "block_table")
    must.hold(not call.ragged, "input_layout", "not ragged with a shared prefix", call.input_layout)
    must.hold(
        call.query.dtype != torch.int8, "query", "not int8 with a shared prefix", call.query.dtype
    )
