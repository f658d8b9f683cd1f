"""npu_nsa_select_attention and its gradient: attention over the blocks that each row chose."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.nsa import _blocks

_MAX_BLOCKS, _MAX_GROUP, _MAX_SIZE, _MAX_KEYS = 128, 32, 128, 128 * 64


def _parts(query, key, value, topk_indices, scale, size, masked, q_ends, kv_ends):
    """For each sequence: rows, columns and, by head of key, queries, chosen positions, their keys, values, scores."""
    heads = key.shape[1]
    for rows, columns in _blocks.sequences(q_ends, kv_ends):
        q = _blocks.grouped(wide(query[rows]), heads)  # (heads, Sq, group, D)
        inner = torch.arange(size, device=query.device)
        at = (topk_indices[rows].transpose(0, 1).long().unsqueeze(-1) * size + inner).flatten(2)
        head = torch.arange(heads, device=query.device).view(-1, 1, 1)
        k, v = (wide(t[columns]).transpose(0, 1)[head, at] for t in (key, value))
        scores = q @ k.mT * scale  # (heads, Sq, group, chosen keys)
        if masked:
            row = torch.arange(q.shape[1], device=query.device).view(1, -1, 1)
            scores = scores.masked_fill((at > row).unsqueeze(2), _blocks.HIDDEN)
        yield rows, columns, q, at, k, v, scores


def _rows(x):
    """(heads, Sq, group, D) -> (Sq, N, D)."""
    return x.transpose(0, 1).flatten(1, 2)


@npu_op(
    "npu_nsa_select_attention(Tensor query, Tensor key, Tensor value, Tensor topk_indices, "
    "float scale_value, int head_num, int select_block_size, int select_block_count, *, "
    "Tensor? atten_mask=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None) "
    "-> (Tensor, Tensor, Tensor)",
    chips=("A2", "A3"),
    ge="NsaSelectedAttention",
    product=True,
    output_differentiability=(True, False, False),
)
def npu_nsa_select_attention(
    query,
    key,
    value,
    topk_indices,
    scale_value,
    select_block_size,
    atten_mask,
    actual_seq_qlen,
    actual_seq_kvlen,
):
    r"""Attention of each row over the blocks of keys that it chose.

    $$ O_i = \mathrm{softmax}(\mathrm{mask}(scale \cdot Q_i K_{I_i}^T)) V_{I_i} $$

    Args:
        query: (T1, N1, D), float16 or bfloat16: the sequences one after the other.
        key: (T2, N2, D); N1 / N2 is at most 32.
        value: (T2, N2, Dv), Dv up to D.
        topk_indices: I, int32 (T1, N2, select_block_count): the blocks of each row within its sequence.
        scale_value: the factor of the scores.
        head_num: N1.
        select_block_size: keys of a block, a multiple of 16 up to 128.
        select_block_count: blocks of a row, 1 to 128; fewer than 8192 keys together.
        atten_mask: if given, row i sees keys up to i of its sequence, whatever it holds; bool or uint8, two dimensions.
            The gradient hides later keys in any case, so training needs it.
        actual_seq_qlen: where each sequence of query ends.
        actual_seq_kvlen: where each sequence of key ends; lengths are multiples of the block that hold all chosen ones.

    Returns:
        O (T1, N1, Dv) and the largest score and the sum of each row, float32 (T1, N1, 8). A row whose keys are all
        hidden weighs them alike.
    """
    out = query.new_zeros((*query.shape[:2], value.shape[2]))
    shape = (2, *query.shape[:2], _blocks.COPIES)
    stats = query.new_zeros(shape, dtype=_blocks.stats_dtype(query))
    for rows, _, _, _, _, v, scores in _parts(
        query, key, value, topk_indices, scale_value, select_block_size, atten_mask is not None,
        actual_seq_qlen, actual_seq_kvlen,
    ):  # fmt: skip
        weights, largest, total = _blocks.softmax(scores)
        out[rows] = _rows(weights @ v).to(out.dtype)
        stats[0, rows], stats[1, rows] = _rows(largest), _rows(total)
    return out, stats[0].clone(), stats[1].clone()


@npu_nsa_select_attention.check
def _check(
    query,
    key,
    value,
    topk_indices,
    head_num,
    select_block_size,
    select_block_count,
    atten_mask,
    actual_seq_qlen,
    actual_seq_kvlen,
):
    size, count = select_block_size, select_block_count
    q_ends, kv_ends = actual_seq_qlen, actual_seq_kvlen
    _blocks.check_attention(query, key, value, head_num, _MAX_GROUP)
    _blocks.check_size("select_block_size", size, _MAX_SIZE)
    must.hold(1 <= count <= _MAX_BLOCKS, "select_block_count", f"in [1, {_MAX_BLOCKS}]", count)
    ok = size * count < _MAX_KEYS
    must.hold(ok, "select_block_count", f"of fewer than {_MAX_KEYS} keys together", size * count)
    must.dtype("topk_indices", topk_indices, torch.int32)
    must.shape("topk_indices", topk_indices, (query.shape[0], key.shape[1], count))
    _blocks.check_mask("atten_mask", atten_mask)
    _blocks.check_ends("actual_seq_qlen", q_ends, query.shape[0], "query", False)
    _blocks.check_ends("actual_seq_kvlen", kv_ends, key.shape[0], "key", False)
    ok = len(q_ends) == len(kv_ends)
    must.hold(ok, "actual_seq_kvlen", f"of {len(q_ends)} sequences", len(kv_ends))
    for start, end in _blocks.spans(kv_ends):
        ok = (end - start) % size == 0 and end - start >= size * count
        expected = f"of lengths that are multiples of {size}, {size * count} or more"
        must.hold(ok, "actual_seq_kvlen", expected, list(kv_ends))
    if must.has_data(topk_indices):
        for rows, columns in _blocks.sequences(q_ends, kv_ends):
            part, blocks = topk_indices[rows], (columns.stop - columns.start) // size
            if part.numel():
                low, high = int(part.min()), int(part.max())
                ok = low >= 0 and high < blocks
                must.hold(ok, "topk_indices", f"of blocks in [0, {blocks})", f"{low} to {high}")


@npu_nsa_select_attention.meta
def _(query, value):
    stats = (*query.shape[:2], _blocks.COPIES)
    out = query.new_empty((*query.shape[:2], value.shape[2]))
    return out, *(query.new_empty(stats, dtype=_blocks.stats_dtype(query)) for _ in range(2))


@npu_nsa_select_attention.backward
def _(
    grad,
    *,
    query,
    key,
    value,
    topk_indices,
    scale_value,
    head_num,
    select_block_size,
    select_block_count,
    atten_mask,
    actual_seq_qlen,
    actual_seq_kvlen,
    results,
):
    dq, dk, dv = torch.ops.npu.npu_nsa_select_attention_grad(
        grad, query, key, value, *results, topk_indices, scale_value, head_num, select_block_size,
        select_block_count, atten_mask=atten_mask, actual_seq_qlen=actual_seq_qlen,
        actual_seq_kvlen=actual_seq_kvlen,
    )  # fmt: skip
    return {"query": dq, "key": dk, "value": dv}


@npu_op(
    "npu_nsa_select_attention_grad(Tensor grad, Tensor query, Tensor key, Tensor value, "
    "Tensor attention_out, Tensor softmax_max, Tensor softmax_sum, Tensor topk_indices, "
    "float scale_value, int head_num, int select_block_size, int select_block_count, *, "
    "Tensor? atten_mask=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None) "
    "-> (Tensor, Tensor, Tensor)",
    chips=("A2", "A3"),
    ge="NsaSelectedAttentionGrad",
    product=True,
)
def npu_nsa_select_attention_grad(
    grad,
    query,
    key,
    value,
    attention_out,
    softmax_max,
    softmax_sum,
    topk_indices,
    scale_value,
    select_block_size,
    actual_seq_qlen,
    actual_seq_kvlen,
):
    r"""The gradients of `npu_nsa_select_attention`.

    $$ dV = P^T dO, \quad dS = P \odot (dO\, V^T - \mathrm{rowsum}(dO \odot O)), \quad
       dQ = scale \cdot dS\, K, \quad dK = scale \cdot dS^T Q $$

    over the chosen keys up to the row's own position, added up where rows chose the same block. Later keys are hidden
    with and without `atten_mask`: upstream always asks CANN's gradient for that (sparse_mode 2), and its tiling, unlike
    that of the forward, does not look at the mask.

    Args:
        grad: dO, (T1, N1, Dv).
        query, key, value, topk_indices, scale_value, head_num, select_block_size, select_block_count, atten_mask,
            actual_seq_qlen, actual_seq_kvlen: as given to the forward.
        attention_out: O.
        softmax_max, softmax_sum: as the forward returned them, float32 (T1, N1, 8).

    Returns:
        dQ, dK and dV, of the shapes and dtypes of query, key and value.
    """
    heads = key.shape[1]
    dq = torch.zeros_like(query)
    dk, dv = (torch.zeros_like(t, dtype=wide(query).dtype) for t in (key, value))
    for rows, columns, q, at, k, v, scores in _parts(
        query, key, value, topk_indices, scale_value, select_block_size, True, actual_seq_qlen,
        actual_seq_kvlen,
    ):  # fmt: skip
        largest, total, dy, out = (
            _blocks.grouped(wide(t[rows]), heads)
            for t in (softmax_max[..., :1], softmax_sum[..., :1], grad, attention_out)
        )
        weights = (scores - largest).exp() / total
        ds = weights * (dy @ v.mT - (dy * out).sum(-1, keepdim=True))
        dq[rows] = _rows(ds @ k * scale_value).to(dq.dtype)
        head = torch.arange(heads, device=query.device).view(-1, 1, 1)
        places = (at + columns.start, head.expand_as(at))
        dk.index_put_(places, ds.mT @ q * scale_value, accumulate=True)
        dv.index_put_(places, weights.mT @ dy, accumulate=True)
    return dq, dk.to(key.dtype), dv.to(value.dtype)


@npu_nsa_select_attention_grad.check
def _(
    grad,
    query,
    key,
    value,
    attention_out,
    softmax_max,
    softmax_sum,
    topk_indices,
    head_num,
    select_block_size,
    select_block_count,
    atten_mask,
    actual_seq_qlen,
    actual_seq_kvlen,
):
    _check(
        query, key, value, topk_indices, head_num, select_block_size, select_block_count, atten_mask,
        actual_seq_qlen, actual_seq_kvlen,
    )  # fmt: skip
    rows, heads = query.shape[:2]
    for name, tensor in (("grad", grad), ("attention_out", attention_out)):
        must.same_dtype(name, tensor, "query", query)
        must.shape(name, tensor, (rows, heads, value.shape[2]))
    for name, tensor in (("softmax_max", softmax_max), ("softmax_sum", softmax_sum)):
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, (rows, heads, _blocks.COPIES))


@npu_nsa_select_attention_grad.meta
def _(query, key, value):
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _choice(make, rows, heads, blocks, count):
    """Different blocks for each row."""
    first = make(rows, heads, 1, dtype=torch.int32, low=0, high=blocks)
    return torch.cat([(first + i) % blocks for i in range(count)], 2).to(torch.int32)


npu_nsa_select_attention.samples = [
    Sample(
        lambda make: (make(7, 4, 16).half(), make(80, 2, 16).half(), make(80, 2, 8).half(),
                      _choice(make, 7, 2, 2, 2), 0.25, 4, 16, 2),
        {"actual_seq_qlen": [3, 7], "actual_seq_kvlen": [32, 80]},
    ),
    Sample(
        lambda make: (make(40, 2, 16).bfloat16(), make(64, 1, 16).bfloat16(), make(64, 1, 16).bfloat16(),
                      _choice(make, 40, 1, 2, 2), 0.25, 2, 32, 2),
        lambda make: {"atten_mask": make(40, 64, dtype=torch.bool), "actual_seq_qlen": [40],
                      "actual_seq_kvlen": [64]},
    ),
]  # fmt: skip
npu_nsa_select_attention_grad.samples = [
    Sample(
        lambda make: (make(7, 4, 8).half(), make(7, 4, 16).half(), make(80, 2, 16).half(), make(80, 2, 8).half(),
                      make(7, 4, 8).half(), make(7, 4, 8, low=1, high=2), make(7, 4, 8, low=9, high=10),
                      _choice(make, 7, 2, 2, 2), 0.25, 4, 16, 2),
        {"actual_seq_qlen": [3, 7], "actual_seq_kvlen": [32, 80]},
    ),
]  # fmt: skip
