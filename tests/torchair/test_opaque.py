"""Operators with arguments of PyTorch's opaque types compile: vLLM passes the names of its layers so."""

from __future__ import annotations

import pytest
import torch

import torchair
from torchair.compiler import get_npu_backend

opaque = pytest.importorskip("torch._library.opaque_object", reason="since torch 2.10")
if not hasattr(opaque, "OpaqueBase"):
    pytest.skip("opaque values that are lifted: since torch 2.11", allow_module_level=True)
OpaqueBase, register_opaque_type = opaque.OpaqueBase, opaque.register_opaque_type

SCALES = {"first": 2.0, "second": 3.0}


class LayerName(OpaqueBase):
    """A value that is lifted to an input of the graph, as vLLM's."""

    def __init__(self, value: str):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, LayerName) and self.value == other.value

    def __hash__(self):
        return hash(self.value)

    def __fx_repr__(self):
        return f"LayerName({self.value!r})", {"LayerName": LayerName}


register_opaque_type(LayerName, typ="value", hoist=True)


@torch.library.custom_op("softnpu_opaque::layer", mutates_args=())
def layer(x: torch.Tensor, name: LayerName) -> torch.Tensor:
    return x * SCALES[name.value]


@layer.register_fake
def _(x, name):
    return torch.empty_like(x)


@pytest.mark.parametrize("eager", [False, True])
def test_a_hoisted_name_compiles(eager):
    """In the mode that captures; the graph engine needs a converter for each operator, as upstream."""
    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    config.debug.run_eagerly = eager
    names = [LayerName("first"), LayerName("second")]

    def function(x):
        for name in names:
            x = torch.relu(layer(x, name)) + 1
        return x

    x = torch.randn(4, 3, device="npu")
    compiled = torch.compile(
        function, backend=get_npu_backend(compiler_config=config), dynamic=False
    )
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), function(x))
    torch._dynamo.reset()
