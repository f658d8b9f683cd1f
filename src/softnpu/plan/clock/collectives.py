"""Collectives by latency and bandwidth, with the algorithms that HCCL's documentation names.

Within a server every rank exchanges its part with every other one at once (mesh). Between servers a rank talks to the
ranks of its own place alone (hierarchical), in a logarithmic number of steps (NHR, recursive halving and doubling). Small
parts are written by the cores themselves, larger ones by the copy engines, whose tasks cost more for each peer.
"""

from __future__ import annotations

import math

from softnpu.plan.clock.constants import Constants
from softnpu.plan.clock.figures import Cost
from softnpu.plan.clock.topology import Group, Topology

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send",
    "barrier",
)
_WORDS = (
    ("barrier", ("barrier",)),
    ("reduce_scatter", ("reducescatter",)),
    ("all_gather", ("allgather", "gather")),
    ("all_reduce", ("allreduce", "reduce")),
    ("all_to_all", ("alltoall",)),
    ("broadcast", ("broadcast", "scatter")),
    ("send", ("send", "recv", "receive", "p2p")),
)


def kind_of(name: str) -> str:
    """The kind of a collective's name: `hccl::_allgather_base_`, `hcom_allReduce_`."""
    plain = name.rsplit("::", 1)[-1].replace("_", "").lower()
    for kind, words in _WORDS:
        if any(word in plain for word in words):
            return kind
    return "all_reduce"


def cost(kind: str, nbytes: float, group: Group, topology: Topology, constants: Constants) -> Cost:
    """A collective over a message of `nbytes` in all: what every rank has in the end (all_gather, all_reduce,
    broadcast), or at the beginning (reduce_scatter, all_to_all), or sends (send)."""
    if group.size <= 1:
        return Cost(constants.vector_start, "latency")
    if kind == "barrier":
        return Cost(_latency(0, group, constants), "latency")
    if kind == "send":
        wire, latency = _send(nbytes, group, topology, constants)
    elif kind == "all_to_all":
        wire, latency = _all_to_all(nbytes, group, topology, constants)
    else:
        gather = _one_way(nbytes, group, topology, constants)
        latency = _latency(nbytes / group.size, group, constants)
        reduce = gather / constants.reduce_efficiency
        if kind == "all_gather":
            wire = gather
        elif kind == "reduce_scatter":
            wire = reduce
        else:  # a reduce-scatter or a scatter, then an all-gather
            wire = gather + (gather if kind == "broadcast" else reduce)
            latency *= 2
    return Cost(wire + latency, "link" if wire > latency else "latency")


def exchange(
    nbytes: float, ranks: int, topology: Topology, constants: Constants, *, normal: bool
) -> Cost:
    """Dispatch or combine of tokens over experts' ranks: what one rank sends, to `ranks` others.

    In normal mode (training, prefill) a rank handles its peers one after another; in low-latency mode it does not.
    """
    group = topology.group((), ranks)
    wire = nbytes / (_speed(group, topology) * _efficiency(topology, constants))
    latency = constants.exchange_start + (constants.exchange_peer * ranks if normal else 0.0)
    return Cost(wire + latency, "link" if wire > latency else "latency")


def copy(nbytes: float, bandwidth: float, constants: Constants, blocks: int = 1) -> Cost:
    """A copy over one link, in blocks whose start overlaps with the transfer of the others."""
    wire = nbytes / (bandwidth * constants.copy_efficiency)
    start = blocks * constants.copy_start
    if blocks == 1:
        return Cost(wire + start, "link" if wire > start else "latency")
    return Cost(max(wire, start), "link" if wire > start else "latency")


def _one_way(nbytes: float, group: Group, topology: Topology, constants: Constants) -> float:
    """Every rank gets the parts of all others: first from its place in other servers, then within the server."""
    part = nbytes / group.size
    seconds = 0.0
    if group.servers > 1:
        between = _between(group, topology, constants)
        seconds += (group.servers - 1) * part / between
    if group.local > 1:
        peers = group.local - 1
        within = topology.bandwidth_within(peers) * _efficiency(topology, constants)
        seconds += peers * part * group.servers / within
    return seconds


def _efficiency(topology: Topology, constants: Constants) -> float:
    mesh = "mesh_gbs" in topology.chip.links
    return constants.mesh_efficiency if mesh else constants.link_efficiency


def _between(group: Group, topology: Topology, constants: Constants) -> float:
    switched = group.pod and "switch_gbs" in topology.chip.links
    efficiency = constants.link_efficiency if switched else constants.network_efficiency
    return topology.bandwidth_between(group.pod) * efficiency


def _speed(group: Group, topology: Topology) -> float:
    if group.servers == 1:
        return topology.bandwidth_within(max(1, group.local - 1))
    return topology.bandwidth_between(group.pod)


def _latency(part: float, group: Group, constants: Constants) -> float:
    """Of one pass over the group, where each rank sends `part` bytes to each peer."""
    seconds = 0.0
    if group.local > 1:
        small = part <= constants.small_message
        engines = 0.0 if small else constants.peer_latency * (group.local - 1)
        seconds += max(constants.small_latency, engines)
    if group.servers > 1:
        seconds += constants.network_latency * math.ceil(math.log2(group.servers))
    return seconds


def _all_to_all(
    nbytes: float, group: Group, topology: Topology, constants: Constants
) -> tuple[float, float]:
    part = nbytes / group.size
    away = part * (group.size - group.local)
    wire = away / _between(group, topology, constants) if away else 0.0
    if group.local > 1:
        peers = group.local - 1
        within = topology.bandwidth_within(peers) * _efficiency(topology, constants)
        near = peers * part / within
        wire = max(wire, near)  # different links
    return wire, _latency(part, group, constants)


def _send(
    nbytes: float, group: Group, topology: Topology, constants: Constants
) -> tuple[float, float]:
    if group.servers > 1:
        return nbytes / _between(group, topology, constants), constants.network_latency
    return nbytes / (
        topology.bandwidth_within(1) * constants.copy_efficiency
    ), constants.small_latency
