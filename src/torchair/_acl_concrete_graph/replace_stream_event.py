"""Streams and events of a graph that dynamo found as marks by name, which any backend can keep; upstream's pass.

Our own compiler reads dynamo's form (`torchair._streams`) and needs no such pass. Backends of programs that call it get
`air::scope_enter` and `scope_exit` around the nodes of a stream, and `air::tagged_*` for waits and records.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchair import _streams, compiler
from torchair.core.utils import logger
from torchair.ops import _tagged
from torchair.scope._attributes import STREAM

__all__ = ["GraphCounter", "replace_stream_event_pass"]


class GraphCounter:
    """Numbers compiled graphs."""

    @classmethod
    def graph_id(cls) -> str:
        """The prefix of the next graph's names."""
        return f"graph_{compiler.next_graph_id()}_"

    @classmethod
    def set_graph_id(cls, value: int) -> None:
        """The next graph has the number after this one."""
        compiler._graph_ids = itertools.count(value + 1)


def replace_stream_event_pass(gm: GraphModule) -> GraphModule:
    """Replaces dynamo's streams and events by marks, in place, and returns the graph.

    Raises RuntimeError if the graph leaves another stream current than it found.
    """
    streams = _streams.indices(gm)
    logger.debug("after dynamo out, graph is: %s", gm.graph)
    _Replacement(gm.graph, GraphCounter.graph_id(), streams).run()
    gm.graph.lint()
    gm.recompile()
    logger.debug("after replace_stream_event, graph is: %s", gm.graph)
    return gm


class _Replacement:
    def __init__(self, graph: Graph, prefix: str, streams: dict[Node, int]):
        self.graph, self.prefix, self.streams = graph, prefix, streams
        self.tags: dict[int, str] = {}  # of events, by their index
        self.labels: dict[int, str] = {}  # of streams
        self.inside = _streams.OUTER  # the stream of the range that is open

    def run(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "output":
                self._move_to(_streams.OUTER, node)
            if node.op != "call_function":
                continue
            index = _streams.object_index(node)
            if index is not None:
                if isinstance(_streams.stream(index), torch.Event):
                    self._tag(index, f"event_{index}")
                continue
            which = _streams.kind(node.target)
            if which != "fork":
                self._move_to(self.streams.get(node, _streams.OUTER), node)
            if which is not None:
                self._replace(which, node)
            if "stream" in (node.meta.get("custom") or {}):
                custom = dict(node.meta["custom"])
                del custom["stream"]
                node.meta["custom"] = custom
        for node in list(self.graph.nodes):
            if _streams.object_index(node) is not None and not node.users:
                self.graph.erase_node(node)

    def _move_to(self, index: int, node: Node) -> None:
        """Closes the range that is open before the node, and opens that of its stream."""
        if index == self.inside:
            return
        with self.graph.inserting_before(node):
            if self.inside != _streams.OUTER:
                self.graph.call_function(torch.ops.air.scope_exit)
            if index != _streams.OUTER:
                numbers = dict(zip(_NUMBERS, self._names(index), strict=True))
                given = {STREAM: self._label(index), "_user_stream_priority": "0", **numbers}
                pairs = list(given), list(given.values())
                self.graph.call_function(torch.ops.air.scope_enter, pairs)
        self.inside = index

    def _replace(self, which: str, node: Node) -> None:
        air = torch.ops.air
        if which == "fork":
            self.graph.erase_node(node)
        elif which in ("record_event", "wait_event"):
            event, stream = node.args[:2]
            verb = which.partition("_")[0]
            tag = self._tag(event, node.name)
            if stream == _streams.OUTER == self.inside:
                self._put(node, getattr(air, f"tagged_event_{verb}"), tag, True)
            else:
                mark = getattr(air, f"tagged_event_{verb}_on_stream")
                self._put(node, mark, tag, *self._names(stream), True)
        elif which == "wait_stream":
            waiting, other = node.args
            names = *self._names(waiting), *self._names(other)
            self._put(node, air.tagged_stream_wait_stream, *names)
        elif which == "record_stream":
            tensor, stream = node.args
            self._put(node, air.record_tagged_stream_, tensor, self._label(stream))

    @staticmethod
    def _put(node: Node, target: Any, *args: Any) -> None:
        node.target, node.args, node.kwargs = target, args, {}

    def _tag(self, index: Any, name: str) -> str:
        if index not in self.tags:
            self.tags[index] = self.prefix + name
            _tagged.keep_event(self.tags[index], _streams.stream(index))
        return self.tags[index]

    def _label(self, index: Any) -> str:
        if index not in self.labels:
            self.labels[index] = f"{self.prefix}stream_{index}"
            _tagged.keep_stream(self.labels[index], _streams.stream(index))
        return self.labels[index]

    @staticmethod
    def _names(index: Any) -> tuple[str, str, str]:
        return _tagged.OUTER if index == _streams.OUTER else _tagged.names(_streams.stream(index))


_NUMBERS = ("_user_stream_id", "_user_stream_device_index", "_user_stream_device_type")
