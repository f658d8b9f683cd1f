"""npu_copy_and_expand_eagle_inputs against a list that grows token by token."""

from __future__ import annotations

import pytest
import torch
from ascend_ops import npu, ops, replayed, run

PADDING, DRAFT = 7, 99
eagle = ops.npu_copy_and_expand_eagle_inputs


def inputs(lengths, rejected):
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    total = int(starts[-1])
    tokens = torch.randint(10, 90, (total,), dtype=torch.int32)
    positions = torch.randint(0, 50, (total,), dtype=torch.int32)
    following = torch.randint(100, 200, (len(lengths),), dtype=torch.int32)
    ends = starts[1:] - 1 - torch.tensor(rejected, dtype=torch.int32)
    return tokens, positions, following, starts, ends


def expected(tokens, positions, following, starts, ends, slots, shift):
    """(id, position, rejected, masked) of each slot, the new tokens' places, the places of hidden states."""
    rows, new, mapping = [], [], []
    for r, end in enumerate(ends.tolist()):
        first, last = int(starts[r]), int(starts[r + 1])
        base, at = len(rows), int(positions[first])
        if shift:
            mapping += [base + i for i in range(last - first)]
        accepted = tokens[first + shift : end + 1].tolist()
        rows += [(t, at + i, 0, 0) for i, t in enumerate(accepted)]
        count = len(accepted)
        new += [base + count + i for i in range(slots)]
        rows.append((int(following[r]), at + count, 0, 0))
        rows += [(DRAFT, at + count + i, 0, 1) for i in range(1, slots)]
        rows += [(PADDING, 0, 1, 0)] * (last - 1 - end)
    return rows, new, mapping if shift else [0] * len(tokens)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("slots", [1, 3])
def test_it_expands_each_request(shift, slots):
    given = inputs([4, 1, 6, 3], [1, 0, 4, 0])
    rows, new, mapping = expected(*given, slots, shift)
    total = len(rows) + 2  # what no request fills is 0
    results = run(eagle, *given, PADDING, DRAFT, slots, shift, total)
    rows += [(0, 0, 0, 0)] * 2
    assert [tuple(row) for row in torch.stack([r.int() for r in results[:4]], 1).tolist()] == rows
    assert results[4].tolist() == new and results[5].tolist() == mapping
    assert [r.dtype for r in results] == [torch.int32] * 2 + [torch.int8] * 2 + [torch.int32] * 2


def test_it_is_captured():
    given = npu(*inputs([3, 2], [0, 1]))
    results = replayed(lambda: eagle(*given, PADDING, DRAFT, 2, False, 9), lambda: given[2].add_(5))
    again = eagle(*given, PADDING, DRAFT, 2, False, 9)
    assert all(torch.equal(a, b) for a, b in zip(results, again))


def test_what_does_not_fit_raises():
    given = list(npu(*inputs([4, 2], [0, 0])))
    with pytest.raises(
        RuntimeError, match="'total_draft_tokens' must be at least 8, .* received 7"
    ):
        eagle(*given, PADDING, DRAFT, 1, False, 7)
    with pytest.raises(RuntimeError, match="'num_padding_slots_per_request' must be at least 1"):
        eagle(*given, PADDING, DRAFT, 0, False, 8)
    given[2] = given[2].long()
    with pytest.raises(RuntimeError, match="'next_token_ids' must be of dtype torch.int32"):
        eagle(*given, PADDING, DRAFT, 1, False, 8)
