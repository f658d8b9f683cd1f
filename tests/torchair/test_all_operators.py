"""Every operator of the package in a host graph: lowered, it computes what it computes eagerly.

The lowered graph runs uncompiled, so that all operators fit into a few seconds.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import torchair  # noqa: F401
from tests.ops.support import make
from torch_npu.ops._registry import operators
from torch_npu.ops._signatures import mutable_arguments
from torchair._host.lower import lower
from torchair._host.run import HostProgram, cpu_outputs, device_of

#: operators that no graph of fixed shapes can hold, or whose result is not determined
LEFT_OUT = {
    "npu_nms_rotated": "the number of its results depends on data",
    "atb::npu_paged_cache_load": "the number of its results depends on data",
    "empty_with_format": "its result is uninitialized",
    "unsafe_empty_with_format": "its result is uninitialized",
}
NAMES = sorted(
    name
    for name, operator in operators.items()
    if operator.samples and not mutable_arguments(operator.schema) and name not in LEFT_OUT
)


def traced(overload, args, kwargs):
    """The operator as an ATen graph on npu, and the tensors that are its inputs."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def call(*given):
        rest = iter(given)
        values = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        inner_args, inner_kwargs = pytree.tree_unflatten(values, spec)
        flat = pytree.tree_leaves(overload(*inner_args, **inner_kwargs))
        return [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(tensor) for tensor in tensors]
    with mode:
        graph = make_fx(call)(*fakes)
    return graph, fakes, tensors, mode


@pytest.mark.parametrize("name", NAMES)
def test_lowered_equals_eager(name):
    operator = operators[name]
    sample = operator.samples[0]
    args, kwargs = sample.inputs(make)
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
    graph, fakes, tensors, mode = traced(operator.overload, args, kwargs)
    lowered = lower(graph, fakes, mode)
    assert not any(str(node.target).startswith("npu.") for node in lowered.graph.graph.nodes)
    program = HostProgram(
        lambda given: lowered.graph(*given), device_of(graph), cpu_outputs(graph), lowered.constants
    )

    torch.npu.manual_seed(3)
    eager = [
        leaf
        for leaf in pytree.tree_leaves(operator.overload(*args, **kwargs))
        if isinstance(leaf, torch.Tensor)
    ]
    torch.npu.manual_seed(3)
    results = program(tensors)
    assert len(results) == len(eager)
    for actual, expected in zip(results, eager, strict=True):
        assert actual.device == expected.device
        assert actual.dtype == expected.dtype
        torch.testing.assert_close(actual, expected, equal_nan=True)
