"""The cost of one task: its class chooses the formula."""

from __future__ import annotations

from softnpu.chips import Chip
from softnpu.plan.clock import attention, classes, collectives, cube, fused, shapes, vector
from softnpu.plan.clock.constants import Constants
from softnpu.plan.clock.figures import ClockError, Cost, link
from softnpu.plan.clock.topology import Topology
from softnpu.plan.tasks import Task


def cost(task: Task, chip: Chip, topology: Topology, constants: Constants) -> Cost:
    """Seconds of the task on the chip."""
    if task.kind == "collective":
        return _collective(task, topology, constants)
    if task.kind == "copy":
        return _copy(task, chip, constants)
    if task.kind != "kernel":
        raise ClockError(
            f"{task.name}: a task is a kernel, a copy or a collective, not {task.kind!r}"
        )
    alone = _kernel(task, chip, constants)
    return fused.add_communication(task, alone, topology, constants) if task.ranks > 1 else alone


def _kernel(task: Task, chip: Chip, constants: Constants) -> Cost:
    """What the kernel computes and moves in the device's own memory."""
    kind = classes.classify(task.name)
    if kind == classes.CUBE and len(task.inputs) > 1 and task.outputs:
        return cube.cost(shapes.product(task), chip, constants)
    if kind == classes.GROUPED:
        return cube.cost(shapes.grouped(task), chip, constants)
    if kind == classes.CONVOLUTION and len(task.inputs) > 1:
        return cube.cost(shapes.convolution(task), chip, constants)
    if kind == classes.ATTENTION and len(task.inputs) > 2:
        return attention.cost(shapes.attention(task), chip, constants)
    moved = shapes.nbytes(task.inputs) + shapes.nbytes(task.outputs)
    if kind == classes.GATHER:  # of the table, the chosen rows alone
        moved = 2 * shapes.nbytes(task.outputs)
    elements = max((spec.numel for spec in (*task.inputs, *task.outputs)), default=0)
    return vector.cost(kind, moved, elements, chip, constants)


def message(task: Task) -> int:
    """Bytes of a collective as `collectives.cost` counts them."""
    kind = collectives.kind_of(task.name)
    given, made = shapes.nbytes(task.inputs), shapes.nbytes(task.outputs)
    if kind == "all_gather":
        return made or given * task.ranks
    return max(given, made)


def _collective(task: Task, topology: Topology, constants: Constants) -> Cost:
    group = topology.group(task.peers, task.ranks)
    kind = collectives.kind_of(task.name)
    return collectives.cost(kind, message(task), group, topology, constants)


def _copy(task: Task, chip: Chip, constants: Constants) -> Cost:
    """Attribute `direction`: h2d and d2h by the host's link, d2d by memory, p2p by the link to another device."""
    size = shapes.nbytes(task.outputs) or shapes.nbytes(task.inputs)
    direction = task.attribute("direction", "d2d")
    if direction in ("h2d", "d2h"):
        wire = size / link(chip, "host_gbs")
        parts = (wire + constants.copy_start, "link" if wire > constants.copy_start else "latency")
        return Cost(*parts)
    if direction == "p2p":
        return collectives.copy(size, Topology.of(chip, 2).bandwidth_within(1), constants)
    return vector.cost(classes.COPY, 2 * size, 0, chip, constants)
