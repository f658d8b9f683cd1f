"""npu_nsa_compress_attention: attention over compressed keys, and the blocks that it finds important."""

from __future__ import annotations

import itertools

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.nsa import _blocks

_MAX_KEYS, _MAX_STRIDE, _MAX_BLOCKS, _MAX_GROUP, _LONGEST = 128, 64, 32, 127, 14000
_FORCED = torch.finfo(torch.float32).max


@npu_op(
    "npu_nsa_compress_attention(Tensor query, Tensor key, Tensor value, float scale_value, "
    "int head_num, int compress_block_size, int compress_stride, int select_block_size, "
    "int select_block_count, *, Tensor? topk_mask=None, Tensor? atten_mask=None, "
    "int[]? actual_seq_qlen=None, int[]? actual_cmp_seq_kvlen=None, "
    "int[]? actual_sel_seq_kvlen=None) -> (Tensor, Tensor, Tensor, Tensor)",
    chips=("A2", "A3"),
    product=True,
    output_differentiability=(True, False, False, False),
)
def npu_nsa_compress_attention(
    query,
    key,
    value,
    scale_value,
    compress_block_size,
    compress_stride,
    select_block_size,
    select_block_count,
    topk_mask,
    atten_mask,
    actual_seq_qlen,
    actual_cmp_seq_kvlen,
    actual_sel_seq_kvlen,
):
    r"""Attention over compressed keys; the blocks with the largest weight are chosen for each row.

    $$ P = \mathrm{softmax}(\mathrm{mask}(scale \cdot Q K^T)), \quad O = P V, \quad
       S_j = \sum_{g} \sum_{m < l'/d} \sum_{n < l/d} P_{g, (j + 1) l'/d - m - n}, \quad
       I = \mathrm{topk}(\mathrm{mask}(S)) $$

    where g runs over the heads that a key's head serves. If l = d, block j sums its own compressed keys, from
    j l'/d on.

    Args:
        query: (T1, N1, D), float16 or bfloat16: the sequences one after the other.
        key: (T2, N2, D), compressed keys; N1 / N2 is below 128 and divides 128.
        value: (T2, N2, Dv), Dv up to D.
        scale_value: the factor of the scores.
        head_num: N1.
        compress_block_size: l, a multiple of 16 up to 128.
        compress_stride: d, a multiple of 16 up to 64, at most l.
        select_block_size: l', a multiple of 16 and of d, l to 128.
        select_block_count: blocks that are chosen, 1 to 32.
        topk_mask: bool or uint8, (max Sq, max blocks): nonzero where a block is always chosen.
        atten_mask: bool or uint8, (max Sq, max Skv): nonzero where a key is hidden.
        actual_seq_qlen: where each sequence of query ends.
        actual_cmp_seq_kvlen: where each sequence of key ends.
        actual_sel_seq_kvlen: where each sequence's blocks end: ceil(Skv / (l' / d)) for each.

    Returns:
        O (T1, N1, Dv), the chosen blocks (T1, N2, select_block_count), int32, the most important first, and the largest
        score and the sum of each row, float32 (T1, N1, 8), by sequence, head and row. A row whose keys are all hidden
        weighs them alike.
    """
    heads = key.shape[1]
    out = query.new_zeros((*query.shape[:2], value.shape[2]))
    chosen = query.new_zeros((query.shape[0], heads, select_block_count), dtype=torch.int32)
    stats: list[list[torch.Tensor]] = [[], []]
    step, overlap = select_block_size // compress_stride, compress_block_size // compress_stride
    blocks = [end - start for start, end in _blocks.spans(actual_sel_seq_kvlen)]
    parts = _blocks.sequences(actual_seq_qlen, actual_cmp_seq_kvlen)
    for (rows, columns), count in zip(parts, blocks, strict=True):
        q = _blocks.grouped(wide(query[rows]), heads)  # (heads, Sq, group, D)
        k, v = (wide(t[columns]).transpose(0, 1).unsqueeze(1) for t in (key, value))
        scores = q @ k.mT * scale_value
        if atten_mask is not None:
            hidden = atten_mask[: q.shape[1], : k.shape[2]].bool().unsqueeze(1)
            scores = scores.masked_fill(hidden, _blocks.HIDDEN)
        weights, largest, total = _blocks.softmax(scores)
        out[rows] = (weights @ v).transpose(0, 1).flatten(1, 2).to(out.dtype)
        marks = _blocks.importance(weights.sum(2), count, step, overlap, int(overlap == 1))
        if topk_mask is not None:
            marks = marks.masked_fill(topk_mask[: q.shape[1], :count].bool(), _FORCED)
        order = marks.sort(dim=-1, descending=True, stable=True).indices[..., :select_block_count]
        chosen[rows] = order.transpose(0, 1).to(torch.int32)
        for found, into in zip((largest, total), stats, strict=True):
            into.append(found.transpose(1, 2).reshape(-1))  # by head, then row
    peak, summed = (_stored(found, query) for found in stats)
    return out, chosen, peak, summed


def _stored(found, query):
    """(T1, N1, 8), by sequence, head and row; zeros behind the last sequence."""
    flat = torch.cat(found)
    flat = torch.nn.functional.pad(flat, (0, query.shape[:2].numel() - flat.numel()))
    return flat.unsqueeze(1).expand(-1, _blocks.COPIES).reshape(*query.shape[:2], _blocks.COPIES)


@npu_nsa_compress_attention.check
def _(
    query,
    key,
    value,
    head_num,
    compress_block_size,
    compress_stride,
    select_block_size,
    select_block_count,
    topk_mask,
    atten_mask,
    actual_seq_qlen,
    actual_cmp_seq_kvlen,
    actual_sel_seq_kvlen,
):
    _blocks.check_attention(query, key, value, head_num, _MAX_GROUP)
    group = head_num // key.shape[1]
    must.hold(128 % group == 0, "head_num", "the heads of key times a divisor of 128", head_num)
    check_blocks(compress_block_size, compress_stride, select_block_size)
    ok = 1 <= select_block_count <= _MAX_BLOCKS
    must.hold(ok, "select_block_count", f"in [1, {_MAX_BLOCKS}]", select_block_count)
    _blocks.check_ends("actual_seq_qlen", actual_seq_qlen, query.shape[0], "query", False)
    _blocks.check_ends("actual_cmp_seq_kvlen", actual_cmp_seq_kvlen, key.shape[0], "key", False)
    must.present("actual_sel_seq_kvlen", actual_sel_seq_kvlen, "(the ends of the blocks)")
    lengths = [end - start for start, end in _blocks.spans(actual_cmp_seq_kvlen)]
    step = select_block_size // compress_stride
    wanted = list(itertools.accumulate(-(-n // step) for n in lengths))
    given = list(actual_sel_seq_kvlen)
    must.hold(given == wanted, "actual_sel_seq_kvlen", f"{wanted}", given)
    count = len(actual_seq_qlen)
    ok = count == len(lengths)
    must.hold(ok, "actual_cmp_seq_kvlen", f"of {count} sequences", len(lengths))
    must.hold(max(lengths) <= _LONGEST, "key", f"of at most {_LONGEST} keys", max(lengths))
    fewest = min(-(-n // step) for n in lengths)
    ok = select_block_count <= fewest
    must.hold(ok, "select_block_count", f"at most the fewest blocks ({fewest})", select_block_count)
    rows = max(end - start for start, end in _blocks.spans(actual_seq_qlen))
    for name, mask, columns in (
        ("atten_mask", atten_mask, max(lengths)),
        ("topk_mask", topk_mask, max(-(-n // step) for n in lengths)),
    ):
        _blocks.check_mask(name, mask)
        if mask is not None:
            ok = mask.shape[0] >= rows and mask.shape[1] >= columns
            must.hold(ok, name, f"of shape ({rows}, {columns})", tuple(mask.shape))


def check_blocks(compress_block_size, compress_stride, select_block_size):
    """The sizes of windows and blocks."""
    _blocks.check_size("compress_block_size", compress_block_size, _MAX_KEYS)
    _blocks.check_size("compress_stride", compress_stride, min(_MAX_STRIDE, compress_block_size))
    _blocks.check_size("select_block_size", select_block_size, _MAX_KEYS)
    ok = select_block_size >= compress_block_size and select_block_size % compress_stride == 0
    expected = f"a multiple of {compress_stride} from {compress_block_size} on"
    must.hold(ok, "select_block_size", expected, select_block_size)


@npu_nsa_compress_attention.meta
def _(query, key, value, select_block_count):
    rows, heads = query.shape[:2]
    stats = (rows, heads, _blocks.COPIES)
    return (
        query.new_empty((rows, heads, value.shape[2])),
        query.new_empty((rows, key.shape[1], select_block_count), dtype=torch.int32),
        query.new_empty(stats, dtype=_blocks.stats_dtype(query)),
        query.new_empty(stats, dtype=_blocks.stats_dtype(query)),
    )


@npu_nsa_compress_attention.backward
def _(
    grad,
    *,
    query,
    key,
    value,
    scale_value,
    head_num,
    atten_mask,
    actual_seq_qlen,
    actual_cmp_seq_kvlen,
    result0,
    result2,
    result3,
):
    found = torch.ops.npu.npu_fusion_attention_grad(
        query, key, value, grad, head_num, "TND", atten_mask=atten_mask, softmax_max=result2,
        softmax_sum=result3, attention_in=result0, scale_value=scale_value,
        actual_seq_qlen=actual_seq_qlen, actual_seq_kvlen=actual_cmp_seq_kvlen, sparse_mode=1,
    )  # fmt: skip
    return {"query": found[0], "key": found[1], "value": found[2]}


def _mask(make, rows, columns):
    return torch.ones_like(make(rows, columns)).triu(1).bool()


npu_nsa_compress_attention.samples = [
    Sample(
        lambda make: (make(7, 4, 16).half(), make(9, 2, 16).half(), make(9, 2, 8).half(), 0.25, 4, 32, 16, 64, 1),
        lambda make: {"atten_mask": _mask(make, 4, 5), "topk_mask": _mask(make, 4, 2),
                      "actual_seq_qlen": [3, 7], "actual_cmp_seq_kvlen": [4, 9],
                      "actual_sel_seq_kvlen": [1, 3]},
    ),
    Sample(
        lambda make: (make(3, 2, 16).bfloat16(), make(6, 1, 16).bfloat16(), make(6, 1, 16).bfloat16(), 0.25, 2,
                      16, 16, 32, 2),
        {"actual_seq_qlen": [3], "actual_cmp_seq_kvlen": [6], "actual_sel_seq_kvlen": [3]},
    ),
]  # fmt: skip
