"""Inputs that a graph writes become outputs on the inputs' own memory: no copy, one `Assign` less.

Upstream does this in the graph that it hands to the engine, with the option `ge.exec.outputReuseInputMemIndexes`; the
engine cannot do it for inputs in the host's memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from torchair.core.utils import logger
from torchair.ge.convert import GeGraph

OPTION = "ge.exec.outputReuseInputMemIndexes"


def assigned_outputs(graph: GeGraph, gm: GraphModule) -> GeGraph:
    """The graph with its final assignments to inputs as outputs; itself if it has none."""
    inputs = graph.inputs
    if not any(_assigned_input(op, inputs) is not None for op in graph.proto.op):
        return graph
    model = type(graph.model)()
    model.CopyFrom(graph.model)
    made = GeGraph(graph.proto.name, model)
    made.inputs = inputs
    pairs = _move(made.proto, inputs)
    made.comments = _without(graph, made)
    on_host = _host_inputs(gm)
    skipped = [pair for pair in pairs if inputs[pair[0]] in on_host]
    if skipped:
        told = ", ".join(f"output {output} of input {index}" for index, output in skipped)
        logger.info("Skip outputReuseInputMemIndexes: %s: in the host's memory", told)
    else:
        value = "|".join(f"{index},{output}" for index, output in pairs)
        made.proto.attr[OPTION].s = value.encode()
        logger.info("option of the graph, %s: %s", OPTION, value)
    return made


def _assigned_input(op: Any, inputs: list[str]) -> int | None:
    """Which input the node overwrites with a result."""
    if op.type != "Assign":
        return None
    ref, value = (name.partition(":")[0] for name in op.input[:2])
    return inputs.index(ref) if ref in inputs and value not in inputs else None


def _move(proto: Any, inputs: list[str]) -> list[tuple[int, int]]:
    """Takes the assignments out; returns pairs of input and output."""
    (end,) = (op for op in proto.op if op.type == "NetOutput")
    final = [op for op in proto.op if _assigned_input(op, inputs) is not None]
    names = {op.name: op for op in final}
    data = [name for name in end.input if not name.endswith(":-1")]
    order = [n for n in end.input if n.endswith(":-1") and n.rpartition(":")[0] not in names]
    pairs = []
    for op in final:
        pairs.append((_assigned_input(op, inputs), len(data)))
        data.append(op.input[1])
        end.input_desc.add().CopyFrom(op.input_desc[1])
        end.input_desc[-1].name = f"input{len(data) - 1}"
        proto.output.append(op.input[1])
    del end.input[:]
    end.input.extend(data + order)
    for op in proto.op:
        for place, name in enumerate(op.input):
            source, _, port = name.rpartition(":")
            if source in names:
                value = names[source].input[1]
                op.input[place] = f"{value.rpartition(':')[0]}:-1" if port == "-1" else value
    for op in final:
        proto.op.remove(op)
    return pairs  # type: ignore[return-value]


def _without(graph: GeGraph, made: GeGraph) -> dict[int, list[str]]:
    """The comments, which stand before nodes by number, after nodes are gone."""
    kept = {op.name for op in made.proto.op}
    comments: dict[int, list[str]] = {}
    count = 0
    for index, op in enumerate(graph.proto.op):
        if index in graph.comments:
            comments.setdefault(count, []).extend(graph.comments[index])
        count += op.name in kept
    return comments


def _host_inputs(gm: GraphModule) -> set[str]:
    found = set()
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.device.type == "cpu":
            found.add(node.name)
    return found
