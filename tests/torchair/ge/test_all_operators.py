"""Every operator of the package enters a GE graph, and the graph read back computes what the operator does eagerly."""

from __future__ import annotations

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.ops.support import make
from tests.torchair.test_all_operators import NAMES, traced
from torch_npu.ops._registry import operators
from torchair import ge
from torchair.ge.interpreter import Interpreter
from torchair.ge.ir import GraphDef


@pytest.mark.parametrize("name", NAMES)
def test_interpreted_equals_eager(name):
    operator = operators[name]
    args, kwargs = operator.samples[0].inputs(make)
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
    graph, fakes, tensors, _ = traced(operator.overload, args, kwargs)
    converted = ge.convert(graph, fakes, config=None, name=name)
    proto = GraphDef.FromString(converted.proto.SerializeToString())

    torch.npu.manual_seed(3)
    flat = pytree.tree_leaves(operator.overload(*args, **kwargs))
    eager = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
    torch.npu.manual_seed(3)
    results = Interpreter(proto)(*tensors)
    for actual, expected in zip(results, eager, strict=True):
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected, equal_nan=True)
