"""Attention of whole prompts, dense or after a cached prefix, with the masks that ATB knows."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _atb_rules as rules
from torch_npu.ops.atb._attend import (
    BF16_MASK,
    FAR,
    Dense,
    Engine,
    Paged,
    Rows,
    attend,
    by_heads,
    integers,
    pages_of,
    starts,
    template_bias,
)

NO_MASK, NORM, ALIBI, NORM_COMPRESS, ALIBI_COMPRESS, ALIBI_SQRT, ALIBI_LEFT = range(7)
CAUSAL = 9


def dense(
    engine: Engine,
    query,
    key,
    value,
    seq_len,
    scale,
    num_heads,
    num_kv_heads,
    out,
    mask=None,
    slopes=None,
    mask_type=NO_MASK,
) -> None:
    """Prompts one after the other; each attends to its own keys."""
    rows, target = by_heads(query, num_heads), by_heads(out, num_heads)
    kv_heads = num_kv_heads or num_heads
    source = Dense(by_heads(key, kv_heads), by_heads(value, kv_heads))
    lengths, contexts = both(integers(seq_len))
    sequences = [
        Rows(
            start,
            n,
            length,
            kv_start,
            bias=_bias(mask, slopes, mask_type, index, n, length),
            edge=length - n if mask_type == NORM_COMPRESS else FAR,
        )
        for index, (start, n, length, kv_start) in enumerate(
            zip(starts(lengths), lengths, contexts, starts(contexts), strict=True)
        )
    ]
    made = target.new_zeros(target.shape)
    attend(engine, rows, source, made, sequences, scale)
    count = sum(lengths)
    out[:count] = made[:count].reshape(count, *out.shape[1:])


def prefixed(
    engine: Engine,
    query,
    key_cache,
    value_cache,
    block_table,
    seq_len,
    context_lens,
    scale,
    num_heads,
    num_kv_heads,
    out,
    mask=None,
    slopes=None,
    mask_type=NORM_COMPRESS,
) -> None:
    """New tokens of sequences whose keys, the new ones among them, stand in pages."""
    rows, target = by_heads(query, num_heads), by_heads(out, num_heads)
    kv_heads = num_kv_heads or num_heads
    key, value = (pages_of(cache, kv_heads, rows.shape[2]) for cache in (key_cache, value_cache))
    lengths, contexts = integers(seq_len), integers(context_lens)
    sequences = [
        Rows(
            start,
            n,
            length,
            bias=_bias(mask, slopes, mask_type, index, n, length),
            edge=length - n if mask_type in (NORM_COMPRESS, CAUSAL) else FAR,
        )
        for index, (start, n, length) in enumerate(
            zip(starts(lengths), lengths, contexts, strict=True)
        )
    ]
    made = target.new_zeros(target.shape)
    attend(engine, rows, Paged(key, value, block_table), made, sequences, scale)
    count = sum(lengths)
    out[:count] = made[:count].reshape(count, *out.shape[1:])


def both(lengths):
    """The lengths of queries and of keys: one list for both, or a list of each."""
    return lengths if lengths and isinstance(lengths[0], list) else (lengths, lengths)


def _bias(mask, slopes, mask_type, index, rows, columns):
    """(1 or N, rows, columns) added to the scores of one sequence, or None."""
    if mask_type in (ALIBI_COMPRESS, ALIBI_SQRT):
        return template_bias(mask, slopes, rows, columns, mask_type == ALIBI_SQRT)
    if mask is None or mask_type not in (NORM, ALIBI):
        return None
    if mask.dim() == 4:
        mask = mask[index]
    elif mask.dim() == 3 and mask_type == NORM:
        mask = mask[index].unsqueeze(0)
    elif mask.dim() == 2:
        mask = mask.unsqueeze(0)
    part = mask[:, :rows, :columns]
    if mask_type == NORM and part.dtype == torch.bfloat16:
        return part.float() * BF16_MASK
    return part


# --- constraints ----------------------------------------------------------------------------------------


#: the largest heads: of keys and values of one size, of others, of a compressed ALiBi mask, of 310P
_WIDE, _WIDER, _ALIBI_HEAD, _HEAD = 576, 1024, 128, 256


def check_dense(query, key, value, seq_len, num_heads, num_kv_heads, out):
    """Tokens of query, key and value, the heads, and lengths that fit them."""
    must.dtype("query", query, *rules.FLOATS)
    rules.heads(num_heads, num_kv_heads, ("num_heads", "num_kv_heads"))
    kv_heads = num_kv_heads or num_heads
    rules.tokens("query", query, num_heads)
    if chips.current().family == "A5":
        must.ndim("query", query, 3)
    for name, tensor, count in (
        ("key", key, kv_heads),
        ("value", value, kv_heads),
        ("out", out, num_heads),
    ):
        must.same_dtype(name, tensor, "query", query)
        must.ndim(name, tensor, query.dim())
        rules.tokens(name, tensor, count)
    rules.written("out", out)
    sizes = [t.shape[1] // n if t.dim() == 2 else t.shape[2] for t, n in (
        (query, num_heads), (key, kv_heads), (value, kv_heads), (out, num_heads))]  # fmt: skip
    must.hold(sizes[1] == sizes[0], "key", f"of head size {sizes[0]}, as 'query'", sizes[1])
    must.hold(sizes[3] == sizes[2], "out", f"of head size {sizes[2]}, as 'value'", sizes[3])
    _check_sizes(sizes[0], sizes[2])
    same = value.shape[0] == key.shape[0]
    must.hold(same, "value", f"of {key.shape[0]} tokens, as 'key'", value.shape[0])
    same = out.shape[0] == query.shape[0]
    must.hold(same, "out", f"of {query.shape[0]} tokens, as 'query'", out.shape[0])
    _check_lengths(seq_len, query.shape[0], key.shape[0])


def _check_sizes(size, wide):
    """The head sizes of keys and values, by chip."""
    family = chips.current().family
    if family in ("310P", "910A"):
        must.hold(wide == size, "value", f"of head size {size}, as 'key'", wide)
        fits = size <= _HEAD and size % 16 == 0
        must.hold(fits, "key", f"of a head size of a multiple of 16 up to {_HEAD}", size)
    elif family == "A5":
        fits = wide == size or (size, wide) == (192, 128)
        must.hold(fits, "value", f"of head size {size} (128 beside 192)", wide)
    else:
        most = _WIDE if wide == size else _WIDER
        must.hold(max(size, wide) <= most, "key", f"of head sizes up to {most}", max(size, wide))


def _check_lengths(seq_len, rows, keys):
    """(batch,) lengths of queries and keys, or (2, batch): as many keys as queries, or one query."""
    if isinstance(seq_len, torch.Tensor):
        if seq_len.dim() == 2:
            must.shape("seq_len", seq_len, (2, None))
        if not must.has_data(seq_len):
            return
        seq_len = integers(seq_len)
    new, known = both(seq_len)
    rules.lengths("seq_len", new, rows)
    rules.lengths("seq_len", known, keys)
    if new is not known:
        for n, length in zip(new, known, strict=True):
            expected = f"of as many keys as queries ({n}), or of one query"
            must.hold(n in (1, length), "seq_len", expected, length)


def check_mask(mask, slopes, mask_type, query, seq_len, num_heads):
    """The shape of a mask by its type."""
    if mask_type == NO_MASK:
        return
    must.present("mask", mask, f"with mask_type {mask_type}")
    must.same_dtype("mask", mask, "query", query)
    if mask_type not in (NORM, ALIBI):
        check_template(mask, slopes, num_heads)
        return
    must.ndim("mask", mask, 2, 3 if chips.current().family == "A5" else 4)
    batch = seq_len.shape[-1] if isinstance(seq_len, torch.Tensor) else len(seq_len)
    if mask.dim() == 4:
        must.shape("mask", mask, (batch, num_heads, None, None))
    elif mask.dim() == 3:
        must.shape("mask", mask, (batch if mask_type == NORM else num_heads, None, None))
    if isinstance(seq_len, torch.Tensor) and not must.has_data(seq_len):
        return
    new, known = both(integers(seq_len) if isinstance(seq_len, torch.Tensor) else seq_len)
    rows, columns = (max(rules.lengths("seq_len", n) or [0]) for n in (new, known))
    expected = f"of at least {rows} rows and {columns} columns"
    fits = mask.shape[-2] >= rows and mask.shape[-1] >= columns
    must.hold(fits, "mask", expected, tuple(mask.shape), ErrCode.PARAM)


def check_template(mask, slopes, num_heads):
    """A compressed ALiBi mask and its slopes."""
    if mask.dim() == 3:
        raise NotImplementedError("mask: the form (heads, length, 128) of an ALiBi mask")
    must.shape("mask", mask, (256, 256))
    must.present("slopes", slopes, "with a compressed ALiBi mask")
    half = chips.current().family == "310P"
    must.dtype("slopes", slopes, torch.float16 if half else torch.float32)
    must.shape("slopes", slopes, (num_heads,))


def check_triangle(mask):
    """A causal template as its corners show it; its values are not read otherwise."""
    if must.has_data(mask):
        last = mask.shape[0] - 1
        places = ((0, 0), (0, 1), (1, 0), (0, last), (last, 0))
        seen = [bool(mask[i, j]) for i, j in places] == [False, True, False, True, False]
        must.hold(seen, "mask", "not 0 above the diagonal and 0 elsewhere", "another pattern")


#: tokens of a page and the largest head after a cached prefix
_PREFIX, _PREFIX_HEAD = 128, 128


def check_prefixed(
    query,
    key_cache,
    value_cache,
    block_table,
    seq_len,
    context_lens,
    num_heads,
    num_kv_heads,
    out,
    names=("num_heads", "num_kv_heads", "key_cache", "value_cache", "block_table", "context_lens"),
):
    """New tokens after cached ones; `names` are those of the operator's arguments."""
    heads, kv_heads, keys, values, pages, contexts = names
    must.dtype("query", query, *rules.FLOATS)
    for name, tensor in ((keys, key_cache), (values, value_cache), ("out", out)):
        must.same_dtype(name, tensor, "query", query)
    rules.heads(num_heads, num_kv_heads, (heads, kv_heads))
    rules.tokens("query", query, num_heads)
    size = query.shape[1] // num_heads if query.dim() == 2 else query.shape[2]
    must.shape("out", out, tuple(query.shape))
    rules.cache(keys, key_cache, num_kv_heads or num_heads, size)
    must.shape(values, value_cache, tuple(key_cache.shape))
    fits = size <= _PREFIX_HEAD and size % 16 == 0
    must.hold(fits, "query", f"of a head size of a multiple of 16 up to {_PREFIX_HEAD}", size)
    block = key_cache.shape[1]
    must.hold(block == _PREFIX, keys, f"of {_PREFIX} tokens a block", block)
    count = len(seq_len)
    must.hold(
        len(context_lens) == count, contexts, f"of {count} lengths, as 'seq_len'", len(context_lens)
    )
    rules.table(block_table, count, pages, exact=True)
    new = rules.lengths("seq_len", seq_len, query.shape[0])
    known = rules.lengths(contexts, context_lens)
    for short, long in zip(new or [], known or [], strict=False):
        must.hold(short <= long, contexts, f"at least the new tokens ({short})", long)
