"""Graphs that run node by node: debug.run_eagerly, dumps, and graphs with streams of their own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves

from torchair import _streams
from torchair.ops import _record, _tagged
from torchair.scope import _attributes


class Eager(Interpreter):
    """Runs the graph as it stands, in its order; nodes that name a stream run there."""

    counts = False  # whether a run changes the object, as dumps do that count their steps

    def __init__(self, gm: GraphModule):
        super().__init__(gm, garbage_collect_values=True)
        self.attributes = _attributes.attributes_of(gm)
        marked = {n: a.get(_attributes.STREAM) for n, a in self.attributes.items()}
        self.tags = {n: str(label) for n, label in marked.items() if label is not None}
        self.indices = _streams.indices(gm)
        self.outer: Any = None
        self.used = _streams.used(gm)

    def __call__(self, *args: Any) -> Any:
        # A run has its own values: threads may share the graph.
        one = self if self.counts else copy.copy(self)
        if not (self.used or self.tags):
            return one.run(*args)
        one.outer = torch.npu.current_stream()
        if self.used:
            _streams.set_outer(one.outer)
        # A capture sees streams that start from its own and come back. Without one, streams of the program's own wait
        # for what it says, those of scopes for the graph.
        others = one._others() if torch.npu.is_current_stream_capturing() else one._scopes()
        for stream in others:
            stream.wait_stream(one.outer)
        results = one.run(*args)
        for stream in others:
            one.outer.wait_stream(stream)
        return results

    def _others(self) -> list[Any]:
        """The graph's streams besides the one on which it was called."""
        found = [_streams.stream(index) for index in sorted(self.used)]
        return self._inner(found) + self._scopes()

    def _scopes(self) -> list[Any]:
        """Of these, the streams of scopes."""
        return self._inner([_tagged.stream_of(tag) for tag in sorted(set(self.tags.values()))])

    def _inner(self, streams: list[Any]) -> list[Any]:
        return [stream for stream in streams if stream.stream_id != self.outer.stream_id]

    def _stream_of(self, n: Node) -> Any:
        """The stream that the node names, if it does."""
        if n in self.tags:
            return _tagged.stream_of(self.tags[n])
        return _streams.stream(self.indices[n]) if n in self.indices else None

    def run_node(self, n: Node) -> Any:
        stream = self._stream_of(n)
        if self.tags and not torch.npu.is_current_stream_capturing():
            self._order(n, stream or self.outer)
        if stream is None:
            return super().run_node(n)
        with torch.npu.stream(stream):
            return super().run_node(n)

    def _order(self, n: Node, here: Any) -> None:
        """GE makes the streams of scopes wait for what their nodes read, and keeps it until it is read."""
        for source in n.all_input_nodes:
            if source not in self.tags and n not in self.tags:
                continue
            stream = self._stream_of(source) or self.outer
            if stream.stream_id == here.stream_id:
                continue
            here.wait_stream(stream)
            for value in tree_leaves(self.env.get(source)):
                if isinstance(value, torch.Tensor) and value.device.type == "npu":
                    value.record_stream(here)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if _streams.kind(target) == "fork":
            return None  # its nodes know their stream
        if target is _attributes.WAIT_TENSOR:
            self._join()
            return args[0]
        if target is _record.WAIT:
            self._join()
        if target in _tagged.ON_STREAMS:
            args = _tagged.resolved(args, self.outer or torch.npu.current_stream())
        return super().call_function(target, args, kwargs)

    def _join(self) -> None:
        """The current stream waits for all work so far: what the tensors' operators left is among it."""
        here = torch.npu.current_stream()
        if torch.npu.is_current_stream_capturing():
            streams = [self.outer, *self._others()]
        else:
            streams = [torch.npu.default_stream(), *_tagged.streams_of(torch.npu.current_device())]
        for stream in streams:
            if stream.stream_id != here.stream_id:
                here.wait_stream(stream)


def needs_streams(gm: GraphModule) -> bool:
    """Whether the graph itself says on which streams it runs."""
    if any(node.target in _tagged.MARKS or _streams.is_sync(node) for node in gm.graph.nodes):
        return True
    if _streams.indices(gm):
        return True
    return any(_attributes.STREAM in a for a in _attributes.attributes_of(gm).values())


def capturable(gm: GraphModule) -> bool:
    """Whether all that its streams wait for is in the graph: tagged events meet the program outside of it."""
    marked = any(node.target in _tagged.MARKS for node in gm.graph.nodes)
    return not marked and _streams.capturable(gm)
