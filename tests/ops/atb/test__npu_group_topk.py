"""_npu_group_topk against loops."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


def expected(scores, k, groups, n):
    out = scores.cpu().clone()
    size = out.shape[1] // groups
    for row in out:
        worth = [
            sum(sorted(row[g * size : (g + 1) * size].tolist(), reverse=True)[:n])
            for g in range(groups)
        ]
        kept = sorted(range(groups), key=lambda g: (-worth[g], g))[:k]
        for g in range(groups):
            if g not in kept:
                row[g * size : (g + 1) * size] = 0
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("k,groups,n", [(1, 1, 1), (1, 4, 1), (2, 4, 2), (4, 4, 3), (3, 16, 1)])
def test_groups(dtype, k, groups, n):
    scores = make(5, 16, dtype=dtype, low=-2, high=2)
    right = expected(scores, k, groups, n)
    assert torch_npu._npu_group_topk(scores, k=k, group_num=groups, n=n) is None
    assert torch.equal(scores.cpu(), right)


def test_of_equal_groups_the_first_stays():
    scores = torch.ones(1, 6, dtype=torch.float16).npu()
    torch_npu._npu_group_topk(scores, 1, 3, 2)
    assert scores.tolist() == [[1, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    "arguments,message",
    [
        ((0, 4, 1), "'k' must be from 1 to 4 groups, but received 0"),
        ((5, 4, 1), "'k' must be from 1 to 4 groups, but received 5"),
        ((1, 3, 1), "'group_num' must be a divisor of 16 experts, but received 3"),
        ((1, 4, 5), "'n' must be at most 4"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(RuntimeError, match=f"_npu_group_topk: argument {message}"):
        torch_npu._npu_group_topk(make(5, 16, dtype=torch.float16), *arguments)


def test_no_worth_counts_as_one():
    scores = make(5, 16, dtype=torch.float16)
    by_one, by_none = scores.clone(), scores.clone()
    torch_npu._npu_group_topk(by_one, 2, 4, 1)
    torch_npu._npu_group_topk(by_none, 2, 4, 0)
    assert torch.equal(by_one.cpu(), by_none.cpu())


def test_310p_and_strided_scores():
    scores = make(5, 16, dtype=torch.float16)
    with (
        on("310P"),
        pytest.raises(RuntimeError, match="'self' must be on a chip of series A2 or A3"),
    ):
        torch_npu._npu_group_topk(scores, 2, 4, 1)
    with pytest.raises(RuntimeError, match="'self' must be contiguous"):
        torch_npu._npu_group_topk(scores.t(), 1, 1, 1)
