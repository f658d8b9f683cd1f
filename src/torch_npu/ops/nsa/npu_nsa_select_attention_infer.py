"""npu_nsa_select_attention_infer: decoding over the chosen blocks of keys in pages."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.nsa import _blocks

_MAX_TOKENS, _MAX_GROUP, _MAX_BATCH, _MAX_SIZE, _MAX_HEADS = 4, 16, 3072, 128, 256
_LAYOUTS = ("BSH", "BSND", "TND")
_WIDTH, _WIDTH_OF_VALUE = 192, 128


def _as_rows(query, layout, head_num):
    """(rows, N, D), a sequence's rows one after the other."""
    if layout == "TND":
        return query
    return (
        query.flatten(0, 1).unflatten(-1, (head_num, -1))
        if layout == "BSH"
        else query.flatten(0, 1)
    )


def _pages(cache, heads):
    return cache.unflatten(2, (heads, -1)) if cache.dim() == 3 else cache


@npu_op(
    "npu_nsa_select_attention_infer(Tensor query, Tensor key, Tensor value, Tensor topk_indices, "
    "float scale_value, int head_num, int key_value_head_num, int select_block_size, "
    "int select_block_count, int page_block_size, *, str layout='BSND', Tensor? atten_mask=None, "
    "Tensor? block_table=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None) -> Tensor",
    chips=("A2", "A3"),
    ge="NsaSelectedAttentionInfer",
    product=True,
)
def npu_nsa_select_attention_infer(
    query,
    key,
    value,
    topk_indices,
    scale_value,
    head_num,
    key_value_head_num,
    select_block_size,
    select_block_count,
    page_block_size,
    layout,
    block_table,
    actual_seq_qlen,
    actual_seq_kvlen,
):
    r"""Attention of new tokens over the blocks that they chose, keys and values in pages.

    $$ o = \mathrm{softmax}(scale \cdot q K_I^T) V_I $$

    Token t of the n new ones of a sequence of s keys sees the first s - (n - 1 - t).

    Args:
        query: (B, S, N D), (B, S, N, D) or (T, N, D), as `layout` says; float16 or bfloat16, S up to 4.
        key: pages (blocks, page_block_size, Nkv D) or (blocks, page_block_size, Nkv, D); N / Nkv up to 16.
        value: pages (blocks, page_block_size, Nkv Dv) or (blocks, page_block_size, Nkv, Dv).
        topk_indices: I, int32, (B, S, Nkv, select_block_count), without S if it is 1, or (T, Nkv, select_block_count);
            -1 for none.
        scale_value: the factor of the scores.
        head_num: N.
        key_value_head_num: Nkv, up to 256.
        select_block_size: keys of a block, a multiple of 16 up to 128.
        select_block_count: blocks of a row.
        page_block_size: 64 or 128.
        layout: BSH, BSND or TND.
        atten_mask: reserved: what is hidden follows from the lengths.
        block_table: (B, pages of a sequence), int32.
        actual_seq_qlen: the new tokens of each sequence, 1 to 4; without it S, or one in TND.
        actual_seq_kvlen: the keys of each sequence.

    Returns:
        o, in the layout of `query`, with heads of the size of those of `value`.
    """
    heads = key_value_head_num
    rows = _as_rows(query, layout, head_num)
    counts, starts = _tokens(query, layout, block_table.shape[0], actual_seq_qlen)
    keys, values = _pages(key, heads), _pages(value, heads)
    choice = topk_indices.reshape(rows.shape[0], heads, select_block_count).long()
    inner = torch.arange(select_block_size, device=query.device)
    out = rows.new_zeros((*rows.shape[:2], values.shape[3]))
    for index, length in enumerate(actual_seq_kvlen):
        table = block_table[index].long()
        for token in range(counts[index]):
            row, seen = starts[index] + token, length - (counts[index] - 1 - token)
            blocks = choice[row].unsqueeze(-1)
            at = (blocks * select_block_size + inner).flatten(1)  # (heads, chosen keys)
            used = ((blocks >= 0).expand(-1, -1, select_block_size)).flatten(1) & (at < seen)
            at = at.masked_fill(~used, 0)
            head = torch.arange(heads, device=query.device).unsqueeze(1)
            place = table[at // page_block_size], at % page_block_size, head
            k, v = (wide(t[place]) for t in (keys, values))
            q = wide(rows[row]).unflatten(0, (heads, -1))
            scores = (q @ k.mT * scale_value).masked_fill(~used.unsqueeze(1), -torch.inf)
            weights = scores.softmax(-1).nan_to_num(0.0)
            out[row] = (weights @ v).flatten(0, 1).to(out.dtype)
    if layout == "TND":
        return out
    out = out.unflatten(0, query.shape[:2])
    return out.flatten(2) if layout == "BSH" else out


def _tokens(query, layout, batch, actual_seq_qlen):
    """The new tokens of each sequence, and the first row of each."""
    if layout == "TND":
        counts = [1] * batch if actual_seq_qlen is None else list(actual_seq_qlen)
        return counts, [start for start, _ in _blocks.of_lengths(counts)]
    counts = [query.shape[1]] * batch if actual_seq_qlen is None else list(actual_seq_qlen)
    return counts, [index * query.shape[1] for index in range(batch)]


@npu_nsa_select_attention_infer.check
def _(
    query,
    key,
    value,
    topk_indices,
    head_num,
    key_value_head_num,
    select_block_size,
    select_block_count,
    page_block_size,
    layout,
    atten_mask,
    block_table,
    actual_seq_qlen,
    actual_seq_kvlen,
):
    must.anything(atten_mask)
    must.choice("layout", layout, _LAYOUTS, "layout only support BSH or BSND or TND now.")
    must.dtype("query", query, *_blocks.HALF)
    must.ndim("query", query, 4 if layout == "BSND" else 3)
    heads = key_value_head_num
    ok = 0 < heads <= _MAX_HEADS and head_num % heads == 0 and head_num // heads <= _MAX_GROUP
    expected = f"a divisor of {head_num}, groups of at most {_MAX_GROUP}"
    must.hold(ok, "key_value_head_num", expected, heads)
    if layout == "BSH":
        ok = query.shape[2] % head_num == 0
        must.hold(ok, "query", f"of width {head_num} times the head size", query.shape[2])
    else:
        ok = head_num == query.shape[-2]
        must.hold(ok, "head_num", f"the heads of query ({query.shape[-2]})", head_num)
    width = query.shape[-1] // (head_num if layout == "BSH" else 1)
    must.hold(width == _WIDTH, "query", f"of head size {_WIDTH}", width)
    _blocks.check_size("select_block_size", select_block_size, _MAX_SIZE)
    must.choice("page_block_size", page_block_size, (64, 128))
    for name, cache in (("key", key), ("value", value)):
        must.same_dtype(name, cache, "query", query)
        must.ndim(name, cache, 4 if layout == "BSND" else 3)
    for name, cache, size in (("key", key, width), ("value", value, _WIDTH_OF_VALUE)):
        row = (heads, size) if layout == "BSND" else (heads * size,)
        must.shape(name, cache, (key.shape[0], page_block_size, *row))
    must.present("block_table", block_table, "(keys are in pages)")
    must.dtype("block_table", block_table, torch.int32)
    must.ndim("block_table", block_table, 2)
    batch = block_table.shape[0]
    must.hold(batch <= _MAX_BATCH, "block_table", f"of at most {_MAX_BATCH} rows", batch)
    _check_lengths(
        query, layout, batch, block_table, page_block_size, actual_seq_qlen, actual_seq_kvlen
    )
    _blocks.check_table(block_table, actual_seq_kvlen, page_block_size, key.shape[0])
    rows = query.shape[0] if layout == "TND" else query.shape[0] * query.shape[1]
    must.dtype("topk_indices", topk_indices, torch.int32)
    ok = topk_indices.numel() == rows * heads * select_block_count
    expected = f"of {rows} rows, {heads} heads and {select_block_count} blocks"
    must.hold(ok and select_block_count > 0, "topk_indices", expected, tuple(topk_indices.shape))
    if must.has_data(topk_indices) and topk_indices.numel():
        most = -(-max(actual_seq_kvlen) // select_block_size)
        low, high = int(topk_indices.min()), int(topk_indices.max())
        must.hold(low >= -1 and high < most, "topk_indices", f"in [-1, {most})", f"{low} to {high}")


def _check_lengths(query, layout, batch, block_table, page, counts, lengths):
    must.present("actual_seq_kvlen", lengths, "(keys are in pages)")
    room = block_table.shape[1] * page
    ok = len(lengths) == batch and all(0 <= n <= room for n in lengths)
    must.hold(ok, "actual_seq_kvlen", f"{batch} lengths up to {room}", list(lengths))
    if layout != "TND":
        ok = query.shape[0] == batch and 1 <= query.shape[1] <= _MAX_TOKENS
        expected = f"of {batch} sequences of 1 to {_MAX_TOKENS} tokens"
        must.hold(ok, "query", expected, tuple(query.shape))
    if counts is not None:
        most = _MAX_TOKENS if layout == "TND" else query.shape[1]
        ok = len(counts) == batch and all(1 <= n <= most for n in counts)
        must.hold(ok, "actual_seq_qlen", f"{batch} counts in [1, {most}]", list(counts))
    if counts is not None:
        ok = all(n <= length for n, length in zip(counts, lengths, strict=True))
        must.hold(ok, "actual_seq_qlen", f"at most {list(lengths)}, the keys", list(counts))
    if layout == "TND":
        total = batch if counts is None else sum(counts)
        must.hold(query.shape[0] == total, "query", f"of {total} rows", query.shape[0])


@npu_nsa_select_attention_infer.meta
def _(query, value, head_num, key_value_head_num, layout):
    size = value.shape[3] if value.dim() == 4 else value.shape[2] // key_value_head_num
    if layout == "BSH":
        return query.new_empty((*query.shape[:2], head_num * size))
    return query.new_empty((*query.shape[:-1], size))


def _ints(make, *shape, low=0, high=2):
    return make(*shape, dtype=torch.int32, low=low, high=high)


npu_nsa_select_attention_infer.samples = [
    Sample(
        lambda make: (make(2, 1, 4, 192).half(), make(3, 64, 2, 192).half(), make(3, 64, 2, 128).half(),
                      _ints(make, 2, 2, 3, low=-1), 0.25, 4, 2, 32, 3, 64),
        lambda make: {"block_table": _ints(make, 2, 2), "actual_seq_kvlen": [100, 33]},
    ),
    Sample(
        lambda make: (make(3, 2, 192).bfloat16(), make(3, 64, 192).bfloat16(), make(3, 64, 128).bfloat16(),
                      _ints(make, 3, 1, 2), 0.25, 2, 1, 16, 2, 64),
        lambda make: {"layout": "TND", "block_table": _ints(make, 2, 1), "actual_seq_kvlen": [40, 20],
                      "actual_seq_qlen": [2, 1]},
    ),
]  # fmt: skip
