"""npu_sparse_attention_score against a softmax in float64, one token and head at a time."""

from __future__ import annotations

import pytest
import torch
from ascend_ops import npu, ops, run

HEADS, SHARED, WIDTH, BLOCK, TOP = 4, 2, 16, 4, 3


def case():
    rows, lengths = [2, 3], [10, 7]
    query = torch.randn(sum(rows), HEADS, WIDTH).bfloat16()
    key, value = (torch.randn(8, BLOCK, SHARED, WIDTH).bfloat16() for _ in range(2))
    table = torch.tensor([[5, 2, 7], [1, 6, 0]]).int()
    chosen = torch.tensor([[1, 0, 2], [2, 0, -1], [0, 1, -1], [1, -1, -1], [1, 0, 2]]).int()
    chosen = torch.stack((chosen, chosen.flip(0))).contiguous()
    counts = torch.tensor([[3, 2, 1, 1, 2], [2, 1, 2, 3, 0]]).int()
    lists = torch.tensor(rows).int(), torch.tensor(lengths).int()
    return query, key, value, chosen, table, counts, lists


def expected(query, key, value, chosen, table, counts, lists):
    out, row = torch.zeros(query.shape).double(), 0
    for n, (rows, length) in enumerate(zip(*(t.tolist() for t in lists))):
        for i in range(rows):
            for head in range(HEADS):
                own = head // (HEADS // SHARED)
                seen = []
                for block in chosen[own, row, : counts[own, row]].tolist():
                    if block < 0:
                        break
                    seen += [p for p in range(block * BLOCK, (block + 1) * BLOCK)
                             if p <= length - rows + i]  # fmt: skip
                if seen:
                    k, v = (torch.stack([t[table[n, p // BLOCK], p % BLOCK, own] for p in seen])
                            .double() for t in (key, value))  # fmt: skip
                    out[row, head] = (0.4 * k @ query[row, head].double()).softmax(0) @ v
            row += 1
    return out


def test_attention_over_chosen_blocks():
    query, key, value, chosen, table, counts, lists = case()
    out = run(
        ops.npu_sparse_attention_score, query, key, value, chosen, table, select_num_idx=counts,
        actual_seq_lengths=lists[0], actual_seq_lengths_kv=lists[1], num_key_value_heads=SHARED,
        scale_value=0.4, block_size=BLOCK, top_k=TOP,
    )  # fmt: skip
    reference = expected(query, key, value, chosen, table, counts, lists)
    torch.testing.assert_close(out.double(), reference, atol=2e-2, rtol=2e-2)


def test_what_does_not_fit_raises():
    query, key, value, chosen, table, _, lists = case()
    given = npu(query, key, value, chosen, table)
    options = {"num_key_value_heads": SHARED, "block_size": BLOCK, "top_k": TOP}
    with pytest.raises(RuntimeError, match="'actual_seq_lengths' must be given"):
        ops.npu_sparse_attention_score(*given, **options)
    with pytest.raises(RuntimeError, match="'key' must be of shape"):
        ops.npu_sparse_attention_score(*given, **options | {"block_size": 8})
    with pytest.raises(NotImplementedError, match="'k_dequant_scale' must be left at None"):
        ops.npu_sparse_attention_score(*given, k_dequant_scale=given[0], **options)
