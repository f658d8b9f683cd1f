"""Fixtures for graph mode. Compiling C++ takes seconds, so most tests run the lowered graph uncompiled."""

from __future__ import annotations

import pytest
import torch

import torchair  # noqa: F401


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Every graph is compiled: AOTAutograd's cache would find those of earlier tests; its own tests switch it on."""
    torch._dynamo.reset()
    with torch._functorch.config.patch(enable_autograd_cache=False):
        yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def own_converters():
    """Converters that a test registers end with it: programs with registered ones are not kept by caches."""
    from torchair.ge import registry

    def foreign(converter):
        return not str(converter.__module__).startswith("torchair.")

    before = dict(registry._converters)
    yield
    for target in [target for target, one in registry._converters.items() if foreign(one)]:
        del registry._converters[target]
        if target in before:
            registry._converters[target] = before[target]


@pytest.fixture
def uncompiled(monkeypatch):
    """Inductor gives back the lowered graph itself; returns the graphs in order."""
    graphs = []

    def keep(gm, inputs, **options):
        graphs.append(gm)

        def run(values):
            given = list(values)
            values.clear()
            return gm(*given)

        run._boxed_call = True
        return run

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", keep)
    return graphs


@pytest.fixture
def counted(monkeypatch):
    """How many graphs the npu backend compiled."""
    from torchair import compiler

    names = []
    before = compiler.compile_graph

    def count(gm, *args, **kwargs):
        names.append(kwargs.get("phase", "forward"))
        return before(gm, *args, **kwargs)

    monkeypatch.setattr(compiler, "compile_graph", count)
    return names
