"""Every operator in an NPUGraph: a replay gives what eager gives, on new data too."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from tests.ops.test_all_operators import SAMPLES, inputs
from torch_npu.ops._registry import operators

ON_PURPOSE = pytest.mark.npu_races("captures what the card cannot")


def tensors(values):
    return [v for v in tree_leaves(values) if isinstance(v, torch.Tensor)]


def copied(values):
    return tree_map_only(torch.Tensor, lambda t: t.clone(), values)


FIRST = [
    pytest.param(name, index, marks=ON_PURPOSE if operators[name].aclop else ())
    for name, index in SAMPLES
    if index < 2
]


@pytest.mark.parametrize("name,index", FIRST)
def test_replay_equals_eager(name, index):
    operator = operators[name]
    given = inputs(name, index)
    mine, theirs = copied(given), copied(given)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = operator.overload(*mine[0], **mine[1])
    for one, original in zip(tensors(mine), tensors(given), strict=True):
        assert torch.equal(one.cpu(), original.cpu()), "a capture computes nothing"
    torch.npu.manual_seed(3)
    graph.replay()
    torch.npu.manual_seed(3)
    expected = operator.overload(*theirs[0], **theirs[1])
    for one, other in zip(tensors((result, mine)), tensors((expected, theirs)), strict=True):
        torch.testing.assert_close(one.cpu(), other.cpu(), rtol=0, atol=0, equal_nan=True)
