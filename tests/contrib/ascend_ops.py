"""What the tests of `_C_ascend` share: the operators, tensors on the device, and that shape functions agree."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import softnpu.contrib.vllm_ascend.extension  # noqa: F401  # defines them

ops = torch.ops._C_ascend


def npu(*tensors):
    return tuple(None if tensor is None else tensor.npu() for tensor in tensors)


def on_device(tree):
    return tree_map_only(torch.Tensor, lambda t: t.npu(), tree)


def run(operator, *args, **kwargs):
    """The results of a call on the device, on the host; the operator's shape function has made the same shapes."""
    args, kwargs = on_device(args), on_device(kwargs)
    shapes = operator(*_meta(args), **_meta(kwargs))
    results = operator(*args, **kwargs)
    made, expected = tree_leaves(shapes), tree_leaves(results)
    assert [(m.shape, m.dtype) for m in made] == [(e.shape, e.dtype) for e in expected]
    return tree_map_only(torch.Tensor, lambda t: t.cpu(), results)


def _meta(tree):
    return tree_map_only(torch.Tensor, lambda t: t.to("meta"), tree)


def replayed(function, written):
    """Captures a call and changes its input with `written()`; the graph's results after a replay."""
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        results = function()
    written()
    graph.replay()
    return results
