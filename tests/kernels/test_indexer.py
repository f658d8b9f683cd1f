"""softnpu::indexer against scores in fp64 and Python's sort."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.calls import randn


def reference(query, weights, key, seen):
    """For each row, scores in fp64 of the keys that it sees, and their positions, best first."""
    found = []
    for r in range(query.shape[0]):
        q, w, k = query[r].double(), weights[r].double(), key[: seen[r]].double()
        scores = (torch.relu(q @ k.T) * w[:, None]).sum(0)
        order = sorted(range(len(scores)), key=lambda i: (-scores[i].item(), i))
        found.append((scores, order))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "rows,heads,width,columns,count",
    [
        (1, 8, 128, 100, 30),
        (5, 64, 128, 33, 40),
        (3, 5, 24, 70, 70),
        (2, 1, 1, 1, 3),
        (40, 3, 33, 31, 7),
    ],
)
def test_best_keys(dtype, rows, heads, width, columns, count):
    query, weights, key = (
        randn(rows, heads, width).to(dtype),
        randn(rows, heads),
        randn(columns, width).to(dtype),
    )
    seen = torch.randint(0, columns + 1, (rows,), generator=torch.Generator().manual_seed(1))
    seen[-1] = columns
    indices, values = torch.ops.softnpu.indexer(query, weights, key, seen, count)
    assert indices.shape == values.shape == (rows, count) and indices.dtype == torch.int32
    for r, (scores, order) in enumerate(reference(query, weights, key, seen)):
        kept = min(count, int(seen[r]))
        assert (indices[r, kept:] == -1).all() and (values[r, kept:] == 0).all()
        own = indices[r, :kept].long()
        assert len(set(own.tolist())) == kept
        torch.testing.assert_close(values[r, :kept].double(), scores[own], rtol=2e-5, atol=2e-4)
        torch.testing.assert_close(scores[own], scores[order[:kept]], rtol=2e-5, atol=2e-4)


def test_equal_scores_keep_their_order():
    query, weights = torch.ones(1, 2, 4), torch.ones(1, 2)
    key = torch.tensor([1.0, 2.0, 1.0, 2.0, -1.0, 1.0]).unsqueeze(1).expand(6, 4)
    indices, values = torch.ops.softnpu.indexer(query, weights, key, torch.tensor([6]), 6)
    assert indices.tolist() == [[1, 3, 0, 2, 5, 4]]
    assert values.tolist() == [[16.0, 16.0, 8.0, 8.0, 8.0, 0.0]]


def test_nan_comes_first_and_is_nobody():
    """As the formula has it: NaN sorts before everything, and is no score above -infinity."""
    key = torch.tensor([[1.0], [float("nan")], [2.0]])
    indices, values = torch.ops.softnpu.indexer(
        torch.ones(1, 1, 1), torch.ones(1, 1), key, torch.tensor([3]), 3
    )
    assert indices.tolist() == [[-1, 2, 0]] and values.tolist() == [[0.0, 2.0, 1.0]]


@pytest.mark.parametrize(
    "rows,heads,width,columns", [(0, 2, 4, 5), (2, 0, 4, 5), (2, 2, 0, 5), (2, 2, 4, 0)]
)
def test_empty(rows, heads, width, columns):
    seen = torch.full((rows,), columns)
    indices, values = torch.ops.softnpu.indexer(
        torch.randn(rows, heads, width),
        torch.randn(rows, heads),
        torch.randn(columns, width),
        seen,
        3,
    )
    want = [0, 1, 2] if columns else [-1, -1, -1]
    assert indices.tolist() == [want] * rows and values.abs().sum() == 0


def test_strided_operands():
    query, key = randn(6, 3, 16)[::2], randn(20, 32)[:, ::2]
    seen = torch.tensor([20, 0, 7])
    weights = randn(3, 6)[:, ::2]
    got = torch.ops.softnpu.indexer(query, weights, key, seen, 5)
    want = torch.ops.softnpu.indexer(
        query.contiguous(), weights.contiguous(), key.contiguous(), seen, 5
    )
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
