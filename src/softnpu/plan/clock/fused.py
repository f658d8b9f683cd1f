"""Operators that compute and communicate in one kernel: products with a collective (MC2), dispatch and combine of tokens.

A product runs beside its collective, part by part, so the longer of the two counts. Dispatch and combine are an
exchange of tokens in low-latency mode; what they compute beside is a copy of the rows.
"""

from __future__ import annotations

import re

from softnpu.plan.clock import collectives, shapes
from softnpu.plan.clock.constants import Constants
from softnpu.plan.clock.figures import Cost
from softnpu.plan.clock.topology import Topology
from softnpu.plan.tasks import Task, bits

_EXCHANGE = re.compile(r"distribute_(dispatch|combine)|attention_to_ffn|ffn_to_attention")
_KINDS = (
    ("all_reduce", re.compile(r"all_?reduce")),
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_gather", re.compile(r"all_?gather")),
    ("all_to_all", re.compile(r"all_?to_?all")),
    ("barrier", re.compile(r"barrier")),
)


def add_communication(task: Task, compute: Cost, topology: Topology, constants: Constants) -> Cost:
    """The cost of a kernel that also talks to the other ranks of its group, whose own work costs `compute`."""
    moved = _communication(task, topology, constants)
    if moved is None:
        return compute
    longer = moved if moved.seconds > compute.seconds else compute
    return Cost(longer.seconds, longer.bound, compute.flops)


def _communication(task: Task, topology: Topology, constants: Constants) -> Cost | None:
    name = task.name.rsplit("::", 1)[-1]
    group = topology.group(task.peers, task.ranks)
    if _EXCHANGE.search(name):
        return collectives.exchange(_tokens(task), task.ranks, topology, constants, normal=False)
    kind = next((kind for kind, words in _KINDS if words.search(name)), None)
    if kind is None:
        return None
    return collectives.cost(kind, _message(kind, name, task), group, topology, constants)


def _message(kind: str, name: str, task: Task) -> float:
    """Bytes of the whole message: of the operand that is gathered or exchanged before the product, or of the result that is
    reduced or exchanged after it."""
    given, made = task.inputs[0].nbytes, task.outputs[0].nbytes
    if kind == "all_gather":
        return given * task.ranks
    if kind == "reduce_scatter":
        return made * task.ranks
    if kind == "all_to_all":
        before = name.removeprefix("npu_").startswith("all")  # all_to_all_matmul, alltoallv_gmm
        return given if before else made
    return made


def _tokens(task: Task) -> float:
    """Bytes that one rank sends: each token to all of its experts, in the dtype in which it arrives."""
    experts = next((s for s in task.inputs if s.dtype == "int32" and len(s.shape) == 2), None)
    rows = task.inputs[0]
    if experts is None or not rows.shape:
        return shapes.nbytes(task.inputs[:1])
    arrives = task.outputs[0].dtype if "dispatch" in task.name and task.outputs else rows.dtype
    return experts.numel * rows.shape[-1] * bits(arrives) / 8
