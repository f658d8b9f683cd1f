"""Streams and events of the program in a graph: torch.npu.Stream, Event, stream and set_stream in compiled code.

Dynamo keeps the objects in a table; the graph names them by index, 0 is the stream that is current when it runs.
Blocks are marks on the nodes inside, `streams::fork` is set_stream, other `streams::*` operators wait and record.
AOTAutograd ties these to the tensors around them with `control_deps`, for compilers that change the order of nodes.
"""

from __future__ import annotations

import operator
import weakref
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node

OUTER = 0  # the index of the stream on which the graph was called


def kind(target: Any) -> str | None:
    """Which of the `streams::*` operators it is: "fork", "record_event", ...; None if none of them."""
    if isinstance(target, OpOverload):
        target = target.overloadpacket  # dynamo's graphs hold this, AOTAutograd's the overload
    if isinstance(target, OpOverloadPacket) and target._qualified_op_name.startswith("streams::"):
        return target.__name__
    return None


def object_index(node: Node) -> int | None:
    """The index of the stream or event that the node takes from dynamo's table."""
    if getattr(node.target, "__name__", None) == "get_external_object_by_index":
        return node.args[0]  # type: ignore[return-value]
    return None


def is_sync(node: Node) -> bool:
    """Whether the node waits, records or sets a stream."""
    return kind(node.target) is not None


def untie(gm: GraphModule) -> None:
    """Makes plain nodes of operators that are tied to tensors: graphs keep their order here."""
    ties = [n for n in gm.graph.nodes if str(n.target) == "control_deps"]
    for tie in reversed(ties):
        _, body, *given = tie.args
        inner = [n for n in getattr(gm, body.target).graph.nodes if is_sync(n)]
        if len(inner) != 1:
            continue
        for user in list(tie.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(
                    given[user.args[1] - 1]
                )  # 0 is what the operator gives: nothing
                gm.graph.erase_node(user)
        with gm.graph.inserting_before(tie):
            made = gm.graph.call_function(inner[0].target, inner[0].args)
        made.meta.update(inner[0].meta)
        gm.graph.erase_node(tie)
        gm.graph.erase_node(body)
        delattr(gm, body.target)


def indices(gm: GraphModule) -> dict[Node, int]:
    """The stream of each node that runs on another than the graph's.

    Raises RuntimeError if the graph leaves another stream current than it found.
    """
    found: dict[Node, int] = {}
    current = OUTER
    for node in gm.graph.nodes:
        if kind(node.target) == "fork":
            current = node.args[1]
        elif node.op == "call_function":
            index = (node.meta.get("custom") or {}).get("stream", current)
            if index != OUTER:
                found[node] = index
    if current != OUTER:
        raise RuntimeError(
            "the compiled code leaves another stream current than it found: take torch.npu.current_stream() at its "
            "beginning and give it to torch.npu.set_stream at its end, or use `with torch.npu.stream(s):`"
        )
    return found


def used(gm: GraphModule) -> set[int]:
    """All streams of the program that the graph names, without its own."""
    found = set(indices(gm).values())
    for node in gm.graph.nodes:
        which = kind(node.target)
        if which in ("record_event", "wait_event", "record_stream"):
            found.add(node.args[1])
        elif which in ("wait_stream", "fork"):
            found |= set(node.args)
    return found - {OUTER}


def capturable(gm: GraphModule) -> bool:
    """Whether a capture can hold all of it: it takes no default stream, no host waits, no events from outside."""
    recorded: set[int] = set()
    for node in filter(is_sync, gm.graph.nodes):
        which = str(kind(node.target))
        if which == "record_event":
            recorded.add(node.args[0])
        if which.startswith("synchronize") or (
            which == "wait_event" and node.args[0] not in recorded
        ):
            return False
    return all(map(_made_by_graph, recorded)) and all(stream(i).stream_id for i in used(gm))


def _made_by_graph(index: int) -> bool:
    from torch._dynamo import graph_bytecode_inputs as table

    return any(one is stream(index) for one in table.keep_alive)


def stream(index: int) -> Any:
    """The stream of an index, in the call that runs now."""
    from torch._dynamo import graph_bytecode_inputs as table

    return table.get_external_object_by_index(index)


def set_outer(outer: Any) -> None:
    """Index 0 becomes this stream, for capture runs on another than the call; the caller keeps it alive."""
    from torch._dynamo import graph_bytecode_inputs as table

    table.index_to_external_object_weakref[OUTER] = weakref.ref(outer)
