"""Attention of whole prompts, dense or after a cached prefix, with the masks that ATB knows."""

from __future__ import annotations

import torch

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
    source = Dense(by_heads(key, num_kv_heads), by_heads(value, num_kv_heads))
    lengths = integers(seq_len)
    sequences = [
        Rows(start, n, n, start, bias=_bias(mask, slopes, mask_type, index, n, n))
        for index, (start, n) in enumerate(zip(starts(lengths), lengths, strict=True))
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
    key = pages_of(key_cache, num_kv_heads, rows.shape[2])
    value = pages_of(value_cache, num_kv_heads, target.shape[2])
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


def _bias(mask, slopes, mask_type, index, rows, columns):
    """(1 or N, rows, columns) added to the scores of one sequence, or None."""
    if mask_type in (ALIBI_COMPRESS, ALIBI_SQRT):
        return template_bias(mask, slopes, rows, columns, mask_type == ALIBI_SQRT)
    if mask is None or mask_type not in (NORM, ALIBI):
        return None
    if mask.dim() == 4:
        mask = mask[index if mask.shape[0] > 1 else 0]
    elif mask.dim() == 3 and mask_type == NORM:
        mask = mask[index if mask.shape[0] > 1 else 0].unsqueeze(0)
    elif mask.dim() == 2:
        mask = mask.unsqueeze(0)
    part = mask[:, :rows, :columns]
    if mask_type == NORM and part.dtype == torch.bfloat16:
        return part.float() * BF16_MASK
    return part


# --- constraints ----------------------------------------------------------------------------------------


def check_dense(query, key, value, seq_len, num_heads, num_kv_heads, out):
    """Tokens of query, key and value, the heads, and lengths that fit them."""
    must.dtype("query", query, *rules.FLOATS)
    for name, tensor in (("key", key), ("value", value), ("out", out)):
        must.same_dtype(name, tensor, "query", query)
        must.ndim(name, tensor, 2, 3)
    rules.heads(num_heads, num_kv_heads, ("num_heads", "num_kv_heads"))
    rules.tokens("query", query, num_heads)
    rules.tokens("key", key, num_kv_heads)
    rules.tokens("value", value, num_kv_heads)
    rules.tokens("out", out, num_heads)
    sizes = [t.shape[1] // n if t.dim() == 2 else t.shape[2] for t, n in (
        (query, num_heads), (key, num_kv_heads), (value, num_kv_heads), (out, num_heads))]  # fmt: skip
    must.hold(sizes[1] == sizes[0], "key", f"of head size {sizes[0]}, as 'query'", sizes[1])
    must.hold(sizes[3] == sizes[2], "out", f"of head size {sizes[2]}, as 'value'", sizes[3])
    rules.lengths("seq_len", seq_len, min(t.shape[0] for t in (query, key, value, out)))


def check_mask(mask, slopes, mask_type, query, seq_len, num_heads):
    """The shape of a mask by its type."""
    if mask_type == NO_MASK:
        return
    must.present("mask", mask, f"with mask_type {mask_type}")
    must.same_dtype("mask", mask, "query", query)
    if mask_type in (NORM, ALIBI):
        must.ndim("mask", mask, 2, 4)
        known = rules.lengths("seq_len", seq_len)
        longest = max(known or [0], default=0)
        expected = f"of at least {longest} rows and columns"
        fits = mask.shape[-2] >= longest and mask.shape[-1] >= longest
        must.hold(fits, "mask", expected, tuple(mask.shape), ErrCode.PARAM)
    else:
        check_template(mask, slopes, num_heads)


def check_template(mask, slopes, num_heads):
    """A compressed ALiBi mask and its slopes."""
    if mask.dim() == 3:
        raise NotImplementedError("mask: the form (heads, length, 128) of an ALiBi mask")
    must.shape("mask", mask, (256, 256))
    must.present("slopes", slopes, "with a compressed ALiBi mask")
    must.shape("slopes", slopes, (num_heads,))


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
    rules.tokens("out", out, num_heads)
    size = query.shape[1] // num_heads if query.dim() == 2 else query.shape[2]
    must.shape("out", out, tuple(query.shape))
    rules.cache(keys, key_cache, num_kv_heads, size)
    rules.cache(values, value_cache, num_kv_heads, size)
    count = len(seq_len)
    must.hold(
        len(context_lens) == count, contexts, f"of {count} lengths, as 'seq_len'", len(context_lens)
    )
    rules.table(block_table, count, pages)
    new = rules.lengths("seq_len", seq_len, query.shape[0])
    known = rules.lengths(contexts, context_lens)
    for short, long in zip(new or [], known or [], strict=False):
        must.hold(short <= long, contexts, f"at least the new tokens ({short})", long)
