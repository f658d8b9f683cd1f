"""Attention by blocks of keys of `_C_ascend` (MiniMax-M3 on Ascend950): for each block the tokens that chose it.

Rows of the lists are blocks of sequences: one sequence after the other (`order_method` 0), or the first block of each
sequence, then the second of each (1). Kernels: vllm-ascend, csrc/attention/k2q_csr.
"""

from __future__ import annotations

import torch

from softnpu.contrib.kernels.blocks import attend
from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must

__all__ = ["npu_k2q_csr", "npu_sparse_attention_score_prefill"]

_IN_TURN = 1


def _rows(counts: torch.Tensor, most: int, order: int) -> torch.Tensor:
    """(sequences, most): the row of each sequence's block, -1 where it has fewer."""
    level = torch.arange(most)
    if order == _IN_TURN:
        before = torch.minimum(counts.unsqueeze(1), level).sum(0)
        there = counts.unsqueeze(1) > level
        row = before + there.long().cumsum(0) - there.long()
    else:
        row = (counts.cumsum(0) - counts).unsqueeze(1) + level
    return row.where(counts.unsqueeze(1) > level, -1)


def _sizes(cu_block_lens, total_rows, max_kv):
    if total_rows >= 0 and max_kv >= 0:
        return total_rows, max_kv
    counts = cu_block_lens.diff()
    return int(cu_block_lens[-1]), int(counts.max()) if counts.numel() else 0


@ascend_op(
    "npu_k2q_csr(Tensor q2k, Tensor cu_seqlens, Tensor cu_block_lens, int order_method=0, "
    "int total_rows=-1, int max_kv=-1, int use_simt=0, int q_global_offset=0) -> "
    "(Tensor row_ptr, Tensor q_ind, Tensor slot)"
)
def npu_k2q_csr(q2k, cu_seqlens, cu_block_lens, order_method, total_rows, max_kv, q_global_offset):
    """From the blocks that each token chose, q2k (heads, T, n), to the tokens of each block, as compressed rows.

    row_ptr (heads, rows + 1) bounds the rows of q_ind and slot (heads, T * n): a token, counted from its sequence's first
    or from the first of all (`q_global_offset`), and the place of the block among those it chose. A token's block
    outside of its sequence is left out; the rest of q_ind and slot is -1.
    """
    total_rows, max_kv = _sizes(cu_block_lens, total_rows, max_kv)
    heads, tokens, top = q2k.shape
    sequences = cu_block_lens.numel() - 1
    bounds = cu_seqlens.long()
    token = torch.arange(tokens)
    owner = torch.searchsorted(bounds, token, right=True) - 1
    owned = (owner >= 0) & (owner < sequences)
    if sequences and max_kv:
        table = _rows(cu_block_lens.long().diff(), max_kv, order_method)
        owner = owner.clamp(0, sequences - 1)
        chosen = q2k.long()
        row = table[owner.view(-1, 1).expand(-1, top), chosen.clamp(0, max_kv - 1)]
        valid = (chosen >= 0) & (chosen < max_kv) & (row >= 0) & (row < total_rows)
        valid = (valid & owned.view(-1, 1)).flatten(1)
        row = row.flatten(1).where(valid, total_rows)
    else:
        row = torch.full((heads, tokens * top), total_rows)
        valid = torch.zeros_like(row, dtype=torch.bool)
    counts = torch.zeros(heads, total_rows + 1, dtype=torch.int64).scatter_add_(
        1, row, valid.long()
    )
    ends = counts[:, :total_rows].cumsum(1)
    row_ptr = torch.nn.functional.pad(ends, (1, 0)).int()
    order = row.argsort(dim=1, stable=True)
    kept = valid.gather(1, order)
    query = order // max(top, 1)
    if not q_global_offset and sequences:
        query = query - bounds[owner][query]
    return row_ptr, query.where(kept, -1).int(), (order % max(top, 1)).where(kept, -1).int()


@npu_k2q_csr.meta
def _(q2k, total_rows, max_kv):
    if total_rows < 0 or max_kv < 0:
        raise NotImplementedError(
            "_C_ascend::npu_k2q_csr: shapes without data need 'total_rows' and 'max_kv'"
        )
    heads, tokens, top = q2k.shape
    lists = q2k.new_empty(heads, tokens * top), q2k.new_empty(heads, tokens * top)
    return q2k.new_empty(heads, total_rows + 1), *lists


@npu_k2q_csr.check
def _(q2k, cu_seqlens, cu_block_lens, order_method, use_simt):
    must.anything(use_simt)  # which units of a core count
    must.dtype("q2k", q2k, torch.int32)
    must.ndim("q2k", q2k, 3)
    must.dtype("cu_seqlens", cu_seqlens, torch.int32)
    must.ndim("cu_seqlens", cu_seqlens, 1)
    must.dtype("cu_block_lens", cu_block_lens, torch.int32)
    must.ndim("cu_block_lens", cu_block_lens, 1)
    must.hold(cu_block_lens.numel() >= 1, "cu_block_lens", "not empty", 0)
    must.shape("cu_seqlens", cu_seqlens, (cu_block_lens.numel(),))
    must.choice("order_method", order_method, (0, 1))


def _chosen(row_ptr, q_indices, slots, lengths_kv, tokens, block_size, top_k):
    """(heads, T, n) blocks of each token, those there are first: the way back from `npu_k2q_csr`."""
    heads, entries = q_indices.shape
    counts = (lengths_kv.long() + block_size - 1) // block_size
    most = int(counts.max()) if counts.numel() else 0
    rows = row_ptr.shape[1] - 1
    level = torch.zeros(rows + 1, dtype=torch.int64)
    table = _rows(counts, most, _IN_TURN)
    inside = (table >= 0) & (table < rows)
    level[table[inside]] = torch.arange(most).expand_as(table)[inside]
    place = torch.arange(entries).expand(heads, -1).contiguous()
    row = torch.searchsorted(row_ptr[:, 1:].long().contiguous(), place, right=True)
    valid = (place < row_ptr[:, -1:]) & (q_indices >= 0) & (slots >= 0)
    valid &= (q_indices < tokens) & (slots < top_k)
    spare = tokens * top_k
    index = (q_indices.long() * top_k + slots).where(valid, spare)
    found = torch.full((heads, spare + 1), -1, dtype=torch.int64)
    found.scatter_(1, index, level[row.clamp(max=rows)])
    found = found[:, :spare].view(heads, tokens, top_k)
    first = (found < 0).int().argsort(dim=-1, stable=True)
    return found.gather(-1, first)


@ascend_op(
    "npu_sparse_attention_score_prefill(Tensor query, Tensor key, Tensor value, "
    "Tensor block_table, Tensor k2q_row_ptr, Tensor k2q_q_indices, Tensor k2q_slot_indices, "
    "int num_key_value_heads, float scale_value, int block_size, int top_k, int inner_precise, *, "
    "Tensor? actual_seq_lengths=None, Tensor? actual_seq_lengths_kv=None) -> Tensor",
    product=True,
)
def npu_sparse_attention_score_prefill(
    query,
    key,
    value,
    block_table,
    k2q_row_ptr,
    k2q_q_indices,
    k2q_slot_indices,
    num_key_value_heads,
    scale_value,
    block_size,
    top_k,
    actual_seq_lengths,
    actual_seq_lengths_kv,
):
    """`npu_sparse_attention_score` of the blocks that are given as the tokens of each block.

    The rows are those of `npu_k2q_csr` with `order_method` 1, its tokens counted from the first of all: as vllm-ascend
    calls it. Its sources have no kernel of the operator, only the call.
    """
    chosen = _chosen(
        k2q_row_ptr, k2q_q_indices, k2q_slot_indices, actual_seq_lengths_kv, query.shape[0],
        block_size, top_k,
    )  # fmt: skip
    lengths = actual_seq_lengths, actual_seq_lengths_kv
    return attend(
        query, key, value, chosen, block_table, lengths, num_key_value_heads, scale_value,
        block_size,
    )  # fmt: skip


@npu_sparse_attention_score_prefill.meta
def _(query):
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@npu_sparse_attention_score_prefill.check
def _(query, key, value, block_table, num_key_value_heads, block_size, top_k, **rest):
    must.choice("inner_precise", rest["inner_precise"], (0, 1, 4))
    must.dtype("query", query, torch.float16, torch.bfloat16)
    must.ndim("query", query, 3)
    tokens, heads, width = query.shape
    must.hold(query.numel() > 0, "query", "not empty", tuple(query.shape))
    fits = num_key_value_heads > 0 and heads % num_key_value_heads == 0
    must.hold(fits, "num_key_value_heads", f"a divisor of {heads}", num_key_value_heads)
    for name, cache in (("key", key), ("value", value)):
        must.same_dtype(name, cache, "query", query)
        must.shape(name, cache, (None, block_size, num_key_value_heads, width))
    must.ndim("block_table", block_table, 2)
    for name in ("k2q_row_ptr", "k2q_q_indices", "k2q_slot_indices"):
        must.dtype(name, rest[name], torch.int32)
        must.shape(name, rest[name], (num_key_value_heads, None))
    must.shape("k2q_slot_indices", rest["k2q_slot_indices"], tuple(rest["k2q_q_indices"].shape))
    for name in ("actual_seq_lengths", "actual_seq_lengths_kv"):
        must.present(name, rest[name], "always")
        must.shape(name, rest[name], (block_table.shape[0],))
