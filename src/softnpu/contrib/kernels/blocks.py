"""Attention over chosen blocks (MiniMax-M3)."""

from __future__ import annotations

import torch

from softnpu.contrib.kernels._definition import Definition
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.attention import _sparse, _sparse_attend

__all__ = ["attend", "npu_sparse_attention_score"]


@Definition
def npu_sparse_attention_score(
    query,
    key,
    value,
    select_idx,
    block_table,
    select_num_idx,
    actual_seq_lengths,
    actual_seq_lengths_kv,
    num_key_value_heads,
    scale_value,
    block_size,
):
    """Causal attention of each token over the blocks of its sequence that `select_idx` names, for each head of keys.

    query (T, N, D); key and value (blocks, block, heads, D), whatever the layout is called; select_idx (heads, T, n)
    with -1 for none, of which the first `select_num_idx` (heads, T) count. A token that sees nothing gives 0.
    """
    chosen = select_idx.long()
    if select_num_idx is not None:
        counted = select_num_idx.unsqueeze(-1)
        chosen = chosen.masked_fill(torch.arange(chosen.shape[-1]) >= counted, -1)
    lengths = actual_seq_lengths, actual_seq_lengths_kv
    return attend(
        query, key, value, chosen, block_table, lengths, num_key_value_heads, scale_value,
        block_size,
    )  # fmt: skip


def attend(query, key, value, chosen, block_table, lengths, shared, scale, block_size):
    """Causal attention over the blocks `chosen` (heads of keys, T, n); none counts after a -1."""
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    group = query.shape[1] // shared
    start = 0
    pairs = zip(*(one.tolist() for one in lengths), strict=True)
    for index, (rows, columns) in enumerate(pairs):
        span = _sparse.Span(index, start, rows, 0, columns)
        part = slice(start, start + rows)
        ids = block_table[index, : -(-columns // block_size)].long().clamp(0, key.shape[0] - 1)
        for head in range(shared):
            heads = slice(head * group, (head + 1) * group)
            k, v = (wide(t[ids, :, head].flatten(0, 1)[:columns]) for t in (key, value))
            q = wide(query[part, heads])
            for step, place, unseen in _sparse_attend.parts(
                span, 3, chosen[head, part], block_size, q.shape[-1]
            ):
                if columns:
                    found = _sparse_attend.forward(q, k, v, step, place, unseen, scale)[0]
                    out[start + step.start : start + step.stop, heads] = found.to(out.dtype)
        start += rows
    return out


@npu_sparse_attention_score.meta
def _(query):
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@npu_sparse_attention_score.check
def _(query, key, value, select_idx, block_table, num_key_value_heads, block_size, top_k, **rest):
    must.choice("q_input_layout", rest.get("q_input_layout", "TND"), ("TND",))
    must.choice("kv_input_layout", rest.get("kv_input_layout", "BNSD"), ("BNSD", "BSND"))
    must.choice("inner_precise", rest["inner_precise"], (0, 1, 4))
    for name in ("q_dequant_scale", "k_dequant_scale", "v_dequant_scale"):
        must.unset(name, rest[name])
    must.dtype("query", query, torch.float16, torch.bfloat16)
    must.ndim("query", query, 3)
    tokens, heads, width = query.shape
    fits = num_key_value_heads > 0 and heads % num_key_value_heads == 0
    must.hold(fits, "num_key_value_heads", f"a divisor of {heads}", num_key_value_heads)
    for name, cache in (("key", key), ("value", value)):
        must.same_dtype(name, cache, "query", query)
        must.shape(name, cache, (None, block_size, num_key_value_heads, width))
    must.dtype("select_idx", select_idx, torch.int32)
    must.shape("select_idx", select_idx, (num_key_value_heads, tokens, top_k))
    must.shape("select_num_idx", rest["select_num_idx"], (num_key_value_heads, tokens))
    must.ndim("block_table", block_table, 2)
    for name in ("actual_seq_lengths", "actual_seq_lengths_kv"):
        must.present(name, rest[name], "always")
        must.shape(name, rest[name], (block_table.shape[0],))
