"""Inputs that a graph writes, in the graph that the engine is given: outputs on the inputs' memory."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torchair
from torchair import ge
from torchair.core.utils import logger
from torchair.ge._assigned import OPTION, assigned_outputs


def converted(f, *inputs):
    gm = make_fx(f, tracing_mode="fake")(*inputs)
    return ge.convert(gm, inputs, config=torchair.CompilerConfig(), name="graph_1"), gm


def updating(cache, x, other):
    total = cache + x
    torch.ops.aten.copy_.default(cache, total)
    torch.ops.aten.copy_.default(other, x * 2)
    return (x - 1,)


def tensors(device):
    return tuple(torch.ones(2, 3, device=device) for _ in range(3))


def end_of(graph):
    (end,) = (op for op in graph.proto.op if op.type == "NetOutput")
    return end


@pytest.fixture
def said(caplog):
    before = logger.level
    logger.addHandler(caplog.handler)
    logger.setLevel(logging.INFO)
    yield caplog
    logger.setLevel(before)
    logger.removeHandler(caplog.handler)


def test_assignments_become_outputs(said):
    graph, gm = converted(updating, *tensors("npu"))
    made = assigned_outputs(graph, gm)
    kinds = {op.name: op.type for op in made.proto.op}
    assert "Assign" not in kinds.values()
    outputs = [kinds[name.partition(":")[0]] for name in end_of(made).input]
    assert outputs == ["Sub", "Add", "Mul"]
    assert [desc.name for desc in end_of(made).input_desc] == ["input0", "input1", "input2"]
    assert list(made.proto.output) == list(end_of(made).input)
    assert made.proto.attr[OPTION].s == b"0,1|2,2"
    assert f"{OPTION}: 0,1|2,2" in said.text
    assert [op.type for op in graph.proto.op].count("Assign") == 2  # the original is left alone


def test_the_host_s_memory_is_not_reused(said):
    graph, gm = converted(updating, *tensors("cpu"))
    made = assigned_outputs(graph, gm)
    assert OPTION not in made.proto.attr
    assert "Skip outputReuseInputMemIndexes: output 1 of input 0" in said.text


def test_a_graph_that_writes_nothing_is_the_same():
    graph, gm = converted(lambda x, y, z: (x + y * z,), *tensors("npu"))
    assert assigned_outputs(graph, gm) is graph


def test_the_dump_of_the_optimized_graph(tmp_path, monkeypatch):
    config = torchair.CompilerConfig()
    config.debug.graph_dump.type = "py"
    config.debug.graph_dump.path = str(tmp_path)
    config.debug.run_eagerly = True
    backend = torchair.get_npu_backend(compiler_config=config)

    def f(cache, x):
        cache.add_(x)
        return cache * 2

    with torch.no_grad():
        cache = torch.zeros(3, device="npu")
        torch.compile(f, backend=backend)(cache, torch.ones(3, device="npu"))
    assert cache.tolist() == [1, 1, 1]
    texts = {
        path.name.split("_")[1]: path.read_text() for path in tmp_path.rglob("dynamo_*_graph_*")
    }
    assert "Assign(" in texts["original"]
    assert "Assign(" not in texts["optimized"]
