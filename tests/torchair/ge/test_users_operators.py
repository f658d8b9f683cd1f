"""Operators of the program's own in graphs: by their schemas, or by converters that name nodes by position."""

from __future__ import annotations

import pytest
import torch

import torchair
from tests.torchair.support import randn
from torchair.ge import registry

pytestmark = pytest.mark.usefixtures("uncompiled", "converters")


@pytest.fixture(scope="module")
def space():
    library = torch.library.Library("users_tests", "DEF")
    library.define("mix(Tensor x, Tensor? y, Tensor[] z, float scale, int shift) -> Tensor")
    library.define("grow(Tensor(a!) x, Tensor y) -> Tensor")
    library.define("scaled(Tensor x, Scalar factor) -> Tensor")
    library.impl("mix", lambda x, y, z, scale, shift: x * scale + sum(z) + shift, "PrivateUse1")
    library.impl("grow", lambda x, y: x.add_(y) * y, "PrivateUse1")
    library.impl("scaled", lambda x, factor: x * factor, "PrivateUse1")
    library.impl("mix", lambda x, y, z, scale, shift: torch.empty_like(x), "Meta")
    library.impl("grow", lambda x, y: torch.empty_like(y), "Meta")
    library.impl("scaled", lambda x, factor: torch.empty_like(x), "Meta")
    yield torch.ops.users_tests
    library._destroy()


@pytest.fixture
def converters():
    """Forgets the converters that a test registers."""
    before = dict(registry._converters)
    yield
    registry._converters.clear()
    registry._converters.update(before)


@pytest.fixture
def nodes(monkeypatch):
    """The nodes of the GE graphs that are made, by type."""
    found = {}
    before = torchair.ge.convert

    def convert(*args, **kwargs):
        graph = before(*args, **kwargs)
        found.update({op.type: op for op in graph.proto.op})
        return graph

    monkeypatch.setattr(torchair.ge, "convert", convert)
    return found


def check(function, *inputs, backend):
    given = [t.clone() for t in inputs]
    result = torch.compile(function, backend=backend, fullgraph=True)(*given)
    expected = [t.clone() for t in inputs]
    torch.testing.assert_close(result, function(*expected))
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("converter", [False, True])
@pytest.mark.parametrize("backend", ["npu", "npugraph_ex"])
def test_operator(space, nodes, backend, converter):
    if converter:

        @torchair.register_fx_node_ge_converter(space.mix.default)
        def convert_mix(x, y, z, scale, shift):
            return torchair.ge.custom_op("Mixed", x, y, z, scale, shift)

    check(lambda x, z: space.mix(x, None, [x, z], 2.0, 5) * 2, randn(4), randn(4), backend=backend)
    if backend == "npu":
        node = nodes["Mixed" if converter else "Mix"]
        assert [one.name for one in node.input_desc][-2:] == ["z0", "z1"]
        assert (node.attr["scale"].f, node.attr["shift"].i) == (2.0, 5)


@pytest.mark.parametrize("converter", [False, True])
def test_operator_that_writes(space, nodes, converter):
    if converter:

        @torchair.register_fx_node_ge_converter(space.grow.default)
        def convert_grow(x, y):
            return torchair.ge.custom_op("Grown", x, y)[1]  # what it writes is the first output

    check(lambda x, y: space.grow(x, y) + x, randn(4), randn(4), backend="npu")
    assert ("Grown" if converter else "Grow") in nodes


def test_scalars_need_a_converter(space):
    with pytest.raises(RuntimeError, match=r"without a converter: users_tests\.scaled\.default"):
        torch.compile(lambda x: space.scaled(x, 2.5), backend="npu")(randn(4))
