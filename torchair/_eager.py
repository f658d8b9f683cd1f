"""Graphs that run node by node: debug.run_eagerly, dumps, and graphs with streams of their own."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from torchair.ops import _record, _tagged
from torchair.scope import _attributes


class Eager(Interpreter):
    """Runs the graph as it stands. Nodes in a stream's range run on that stream, in the order of the graph."""

    def __init__(self, gm: GraphModule):
        super().__init__(gm, garbage_collect_values=True)
        self.attributes = _attributes.attributes_of(gm)

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)

    def run_node(self, n: Node) -> Any:
        label = self.attributes.get(n, {}).get(_attributes.STREAM)
        if label is None:
            return super().run_node(n)
        with torch.npu.stream(_tagged.stream_of(str(label))):
            return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is _attributes.WAIT_TENSOR:
            _join_streams()
            return args[0]
        if target is _record.WAIT:
            _join_streams()
        return super().call_function(target, args, kwargs)


def _join_streams() -> None:
    """The current stream waits for all work so far: what the tensors' operators left is among it."""
    here = torch.npu.current_stream()
    for stream in [torch.npu.default_stream(), *_tagged.streams_of(torch.npu.current_device())]:
        if stream != here:
            here.wait_stream(stream)


def needs_streams(gm: GraphModule) -> bool:
    """Whether the graph itself says on which streams it runs."""
    marks = (_tagged.RECORD, _tagged.WAIT, _tagged.RECORD_STREAM)
    if any(node.target in marks for node in gm.graph.nodes):
        return True
    return any(_attributes.STREAM in a for a in _attributes.attributes_of(gm).values())
