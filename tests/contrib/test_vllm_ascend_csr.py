"""npu_k2q_csr against loops, and npu_sparse_attention_score_prefill against a softmax in float64."""

from __future__ import annotations

import pytest
import torch
from ascend_ops import npu, ops, replayed, run


def reference(q2k, cu_q, cu_b, order, everywhere):
    heads, tokens, top = q2k.shape
    counts = [b - a for a, b in zip(cu_b, cu_b[1:])]
    rows = [(n, level) for n, count in enumerate(counts) for level in range(count)]
    if order == 1:
        rows.sort(key=lambda row: (row[1], row[0]))
    pointers, queries, slots = [], [], []
    for head in range(heads):
        lists: list[list[tuple[int, int]]] = [[] for _ in rows]
        for n, (start, end) in enumerate(zip(cu_q, cu_q[1:])):
            for token in range(start, end):
                for slot in range(top):
                    place = (n, int(q2k[head, token, slot]))
                    if place in rows:
                        shown = token if everywhere else token - start
                        lists[rows.index(place)].append((shown, slot))
        flat = [entry for one in lists for entry in one]
        flat += [(-1, -1)] * (tokens * top - len(flat))
        ends = torch.tensor([0] + [len(one) for one in lists]).cumsum(0)
        pointers.append(ends)
        queries.append(torch.tensor([q for q, _ in flat]))
        slots.append(torch.tensor([s for _, s in flat]))
    return tuple(torch.stack(parts).int() for parts in (pointers, queries, slots))


def choose(heads=2, tokens=9, top=3):
    torch.manual_seed(0)
    cu_q, cu_b = [0, 4, 4, 9], [0, 3, 4, 6]
    q2k = torch.randint(-1, 5, (heads, tokens, top), dtype=torch.int32)
    return q2k, cu_q, cu_b


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("everywhere", [0, 1])
@pytest.mark.parametrize("sizes", [(-1, -1), (6, 3)])
def test_tokens_of_each_block(order, everywhere, sizes):
    q2k, cu_q, cu_b = choose()
    got = ops.npu_k2q_csr(*npu(q2k, torch.tensor(cu_q).int(), torch.tensor(cu_b).int()), order,
                          *sizes, 0, everywhere)  # fmt: skip
    for one, other in zip(got, reference(q2k, cu_q, cu_b, order, everywhere)):
        assert torch.equal(one.cpu(), other)


def test_shapes_without_data():
    q2k, cu_q, cu_b = choose()
    given = q2k, torch.tensor(cu_q).int(), torch.tensor(cu_b).int()
    run(ops.npu_k2q_csr, *given, 1, 6, 3)
    with pytest.raises(NotImplementedError, match="need 'total_rows' and 'max_kv'"):
        ops.npu_k2q_csr(*(t.to("meta") for t in given))


def test_replay_follows_the_choice():
    q2k, cu_q, cu_b = choose()
    given = npu(torch.full_like(q2k, -1), torch.tensor(cu_q).int(), torch.tensor(cu_b).int())
    got = replayed(lambda: ops.npu_k2q_csr(*given, 1, 6, 3), lambda: given[0].copy_(q2k))
    for one, other in zip(got, reference(q2k, cu_q, cu_b, 1, False)):
        assert torch.equal(one.cpu(), other)


def test_what_does_not_fit_raises():
    q2k, cu_q, cu_b = choose()
    given = npu(q2k, torch.tensor(cu_q).int(), torch.tensor(cu_b).int())
    with pytest.raises(RuntimeError, match="'order_method' must be 0 or 1"):
        ops.npu_k2q_csr(*given, 2)
    with pytest.raises(RuntimeError, match="'q2k' must be of dtype torch.int32"):
        ops.npu_k2q_csr(given[0].long(), *given[1:])


HEADS, SHARED, WIDTH, BLOCK, TOP = 4, 2, 16, 4, 3


def test_prefill():
    """The lists of the blocks give the attention of the blocks that each token chose."""
    torch.manual_seed(1)
    rows, lengths = [2, 3], [10, 7]
    query = torch.randn(sum(rows), HEADS, WIDTH).bfloat16()
    key, value = (torch.randn(8, BLOCK, SHARED, WIDTH).bfloat16() for _ in range(2))
    table = torch.tensor([[5, 2, 7], [1, 6, 0]]).int()
    chosen = torch.tensor([[1, -1, 2], [2, 0, 1], [-1, 1, 0], [1, -1, -1], [1, 0, -1]]).int()
    chosen = torch.stack((chosen, chosen.flip(0).clamp(max=1))).contiguous()
    starts = torch.tensor([0, 2, 5]).int()
    blocks = torch.tensor([0, 3, 5]).int()
    lists = ops.npu_k2q_csr(*npu(chosen, starts, blocks), 1, 5, 3, 0, 1)
    out = run(
        ops.npu_sparse_attention_score_prefill, query, key, value, table, *lists, SHARED, 0.4, BLOCK,
        TOP, 1, actual_seq_lengths=torch.tensor(rows).int(),
        actual_seq_lengths_kv=torch.tensor(lengths).int(),
    )  # fmt: skip
    expected, row = torch.zeros(query.shape).double(), 0
    for n, (count, length) in enumerate(zip(rows, lengths)):
        for i in range(count):
            for head in range(HEADS):
                own = head // (HEADS // SHARED)
                picked = [b for b in chosen[own, row].tolist() if 0 <= b < -(-length // BLOCK)]
                seen = [p for b in picked for p in range(b * BLOCK, (b + 1) * BLOCK)
                        if p <= length - count + i]  # fmt: skip
                if seen:
                    k, v = (torch.stack([t[table[n, p // BLOCK], p % BLOCK, own] for p in seen])
                            .double() for t in (key, value))  # fmt: skip
                    expected[row, head] = (0.4 * k @ query[row, head].double()).softmax(0) @ v
            row += 1
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
