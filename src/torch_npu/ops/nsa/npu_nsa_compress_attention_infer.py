"""npu_nsa_compress_attention_infer: decoding over compressed keys in pages, and the choice of blocks."""

from __future__ import annotations

import math

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.nsa import _blocks
from torch_npu.ops.nsa.npu_nsa_compress_attention import check_blocks

_MAX_TOKENS, _MAX_GROUP, _WIDEST, _WIDEST_VALUE, _MAX_PAGE, _LONGEST, _MAX_BLOCKS = (
    4, 128, 192, 128, 128, 8192, 4096,
)  # fmt: skip
_HIDDEN = -3e38


def token_counts(batch, actual_seq_qlen, cmp_lengths, sel_lengths, size, stride):
    """The rows of each sequence, and whether there are several: one each, unless all lengths fit together."""
    one = [1] * batch, False
    if actual_seq_qlen is None or len(actual_seq_qlen) != batch:
        return one
    if any(not 1 <= n <= _MAX_TOKENS for n in actual_seq_qlen) or max(actual_seq_qlen) == 1:
        return one
    if sel_lengths is None or len(sel_lengths) != batch:
        return one
    fits = (c == (s - size) // stride + 1 for c, s in zip(cmp_lengths, sel_lengths, strict=True))
    return (list(actual_seq_qlen), True) if all(fits) else one


@npu_op(
    "npu_nsa_compress_attention_infer(Tensor query, Tensor key, Tensor value, float scale_value, "
    "int head_num, int key_value_head_num, int select_block_size, int select_block_count, "
    "int page_block_size, int compress_block_size, int compress_stride, *, str layout='TND', "
    "Tensor? atten_mask=None, Tensor? block_table=None, Tensor? topk_mask=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_cmp_seq_kvlen=None, "
    "int[]? actual_sel_seq_kvlen=None) -> (Tensor, Tensor)",
    chips=("A2", "A3"),
    product=True,
)
def npu_nsa_compress_attention_infer(
    query,
    key,
    value,
    scale_value,
    key_value_head_num,
    select_block_size,
    select_block_count,
    page_block_size,
    compress_block_size,
    compress_stride,
    layout,
    block_table,
    actual_seq_qlen,
    actual_cmp_seq_kvlen,
    actual_sel_seq_kvlen,
):
    r"""Attention of new tokens over compressed keys in pages; each chooses blocks of the original sequence.

    $$ P = \mathrm{softmax}(scale \cdot q K^T), \quad o = P V, \quad
       S_j = \sum_g \sum_{m < l'/d} \sum_{n < l/d} P_{g, (j + 1) l'/d - m - n}, \quad I = \mathrm{topk}(S) $$

    The first block and the last two are always chosen. With several tokens a sequence, the last compressed key is hidden
    from tokens that its window reaches beyond.

    Args:
        query: (T, N, D) or (B, S, N, D), float16 or bfloat16, D up to 192, S up to 4.
        key: pages (blocks, page_block_size, Nkv D), of the dtype of `query`; N / Nkv divides 128.
        value: pages (blocks, page_block_size, Nkv Dv), Dv up to 128 and to D.
        scale_value: the factor of the scores.
        head_num: N.
        key_value_head_num: Nkv.
        select_block_size: l', a multiple of 16 and of d, l to 128.
        select_block_count: blocks that are chosen, at most those of a sequence.
        page_block_size: a multiple of 16 up to 128.
        compress_block_size: l, a multiple of 16 up to 128.
        compress_stride: d, a multiple of 16 up to l.
        layout: TND or BSND, of `query`.
        atten_mask: reserved: what is hidden follows from the lengths.
        block_table: (B, pages of a sequence), int32.
        topk_mask: reserved.
        actual_seq_qlen: the tokens of each sequence, 1 to 4; one each where they do not fit the other lengths.
        actual_cmp_seq_kvlen: the compressed keys of each sequence, up to 8192.
        actual_sel_seq_kvlen: the original keys of each sequence.

    Returns:
        o, (T, N, Dv) or (B, S, N, Dv), and the chosen blocks, int32, (T, Nkv, select_block_count) or (B, S, Nkv,
        select_block_count).
    """
    batch, heads = block_table.shape[0], key_value_head_num
    counts, several = token_counts(
        batch, actual_seq_qlen, actual_cmp_seq_kvlen, actual_sel_seq_kvlen, compress_block_size,
        compress_stride,
    )  # fmt: skip
    rows = query.flatten(0, 1) if layout == "BSND" else query
    starts = [start for start, _ in _blocks.of_lengths(counts)]
    if layout == "BSND":
        starts = [index * query.shape[1] for index in range(batch)]
    out = rows.new_zeros((*rows.shape[:2], value.shape[2] // heads))
    chosen = rows.new_zeros((rows.shape[0], heads, select_block_count), dtype=torch.int32)
    step, overlap = select_block_size // compress_stride, compress_block_size // compress_stride
    for index, length in enumerate(actual_cmp_seq_kvlen):
        pages = block_table[index, : math.ceil(length / page_block_size)].long()
        k, v = (
            wide(t[pages].flatten(0, 1)[:length]).unflatten(1, (heads, -1)).transpose(0, 1)
            for t in (key, value)
        )
        tail = 0
        if several:
            covered = (length - 1) * compress_stride + compress_block_size
            tail = actual_sel_seq_kvlen[index] - covered
        blocks = math.ceil(
            ((length - 1) * compress_stride + compress_block_size) / select_block_size
        )
        for token in range(counts[index]):
            row = starts[index] + token
            q = wide(rows[row]).unflatten(0, (heads, -1))  # (heads, group, D)
            scores = q @ k.mT * scale_value
            if several and counts[index] - token - 1 > tail:
                scores[..., -1] = _HIDDEN
            weights = _blocks.softmax(scores)[0]
            out[row] = (weights @ v).flatten(0, 1).to(out.dtype)
            marks = _blocks.importance(weights.sum(1), blocks, step, overlap, 0)
            marks[..., :1] = torch.inf
            marks[..., -2:] = torch.inf
            order = marks.sort(dim=-1, descending=True, stable=True).indices
            chosen[row] = order[..., :select_block_count].to(torch.int32)
    if layout == "BSND":
        return out.unflatten(0, query.shape[:2]), chosen.unflatten(0, query.shape[:2])
    return out, chosen


@npu_nsa_compress_attention_infer.check
def _(
    query,
    key,
    value,
    head_num,
    key_value_head_num,
    select_block_size,
    select_block_count,
    page_block_size,
    compress_block_size,
    compress_stride,
    layout,
    atten_mask,
    block_table,
    topk_mask,
    actual_seq_qlen,
    actual_cmp_seq_kvlen,
    actual_sel_seq_kvlen,
):
    must.anything(atten_mask, topk_mask)
    must.choice("layout", layout, ("TND", "BSND"), "layout only support TND or BSND now.")
    must.dtype("query", query, *_blocks.HALF)
    must.ndim("query", query, 3 if layout == "TND" else 4)
    check_blocks(compress_block_size, compress_stride, select_block_size)
    _blocks.check_size("page_block_size", page_block_size, _MAX_PAGE)
    heads = key_value_head_num
    ok = 0 < heads <= head_num and head_num % heads == 0 and 128 % (head_num // heads) == 0
    must.hold(ok, "key_value_head_num", f"dividing {head_num} into groups that divide 128", heads)
    ok = head_num == query.shape[-2]
    must.hold(ok, "head_num", f"the heads of query ({query.shape[-2]})", head_num)
    width = query.shape[-1]
    must.hold(width <= _WIDEST, "query", f"of width up to {_WIDEST}", width)
    must.same_dtype("key", key, "query", query)
    must.same_dtype("value", value, "query", query)
    must.shape("key", key, (None, page_block_size, heads * width))
    must.shape("value", value, (key.shape[0], page_block_size, None))
    of_value = value.shape[2] // heads
    ok = value.shape[2] % heads == 0 and of_value <= min(width, _WIDEST_VALUE)
    must.hold(
        ok, "value", f"of width {heads} times up to {min(width, _WIDEST_VALUE)}", value.shape[2]
    )
    must.present("block_table", block_table, "(keys are in pages)")
    must.dtype("block_table", block_table, torch.int32)
    must.ndim("block_table", block_table, 2)
    lengths = actual_cmp_seq_kvlen
    must.present("actual_cmp_seq_kvlen", lengths, "(keys are in pages)")
    batch = block_table.shape[0]
    ok = len(lengths) == batch and all(0 < n <= _LONGEST for n in lengths)
    must.hold(ok, "actual_cmp_seq_kvlen", f"{batch} lengths in [1, {_LONGEST}]", list(lengths))
    room = block_table.shape[1] * page_block_size
    must.hold(max(lengths) <= room, "actual_cmp_seq_kvlen", f"at most {room}", max(lengths))
    _blocks.check_table(block_table, lengths, page_block_size, key.shape[0])
    spans = [(n - 1) * compress_stride + compress_block_size for n in lengths]
    most = max(spans) / select_block_size
    must.hold(most <= _MAX_BLOCKS, "actual_cmp_seq_kvlen", f"of up to {_MAX_BLOCKS} blocks", most)
    fewest = math.ceil(min(spans) / select_block_size)
    ok = 1 <= select_block_count <= fewest
    must.hold(ok, "select_block_count", f"in [1, {fewest}], the fewest blocks", select_block_count)
    counts, _several = token_counts(
        batch, actual_seq_qlen, lengths, actual_sel_seq_kvlen, compress_block_size, compress_stride
    )
    if layout == "TND":
        must.hold(query.shape[0] == sum(counts), "query", f"of {sum(counts)} rows", query.shape[0])
    else:
        must.shape("query", query, (batch, max(counts), None, None))


@npu_nsa_compress_attention_infer.meta
def _(query, value, key_value_head_num, select_block_count):
    size = value.shape[2] // key_value_head_num
    chosen = (*query.shape[:-2], key_value_head_num, select_block_count)
    return query.new_empty((*query.shape[:-1], size)), query.new_empty(chosen, dtype=torch.int32)


def _table(make, rows, columns):
    return make(rows, columns, dtype=torch.int32, low=0, high=3)


npu_nsa_compress_attention_infer.samples = [
    Sample(
        lambda make: (make(2, 4, 16).half(), make(3, 16, 32).half(), make(3, 16, 16).half(), 0.25, 4, 2, 32, 3,
                      16, 32, 16),
        lambda make: {"block_table": _table(make, 2, 2), "actual_cmp_seq_kvlen": [20, 9]},
    ),
    Sample(
        lambda make: (make(1, 2, 2, 16).bfloat16(), make(3, 16, 16).bfloat16(), make(3, 16, 16).bfloat16(), 0.25, 2,
                      1, 32, 3, 16, 32, 16),
        lambda make: {"layout": "BSND", "block_table": _table(make, 1, 2), "actual_seq_qlen": [2],
                      "actual_cmp_seq_kvlen": [20], "actual_sel_seq_kvlen": [336]},
    ),
]  # fmt: skip
