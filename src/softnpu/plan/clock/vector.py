"""Kernels of the vector cores: bytes over the bandwidth, and what a kernel costs before its first byte."""

from __future__ import annotations

from softnpu.chips import Chip
from softnpu.plan.clock.classes import ROW, SORT
from softnpu.plan.clock.constants import Constants
from softnpu.plan.clock.figures import Cost, bound_of


def bandwidth(nbytes: float, chip: Chip, constants: Constants) -> float:
    """What a kernel reaches that reads and writes so many bytes: what fits in the cache stays there."""
    speed = chip.memory_bandwidth * constants.memory_efficiency
    return speed * constants.cache_speedup if nbytes <= chip.l2_cache / 2 else speed


def cost(kind: str, nbytes: float, elements: int, chip: Chip, constants: Constants) -> Cost:
    """A kernel of class `kind` over `elements`, that reads and writes `nbytes` in all."""
    start = constants.row_start if kind == ROW else constants.vector_start
    parts = {"launch": start, "memory": nbytes / bandwidth(nbytes, chip, constants)}
    if kind == SORT:
        parts["vector"] = elements / (chip.vector_cores * constants.sort_rate)
    return Cost(start + max(parts["memory"], parts.get("vector", 0.0)), bound_of(parts))


def triton(nbytes: float, chip: Chip, constants: Constants) -> Cost:
    """A vector kernel that Triton compiled."""
    parts = {
        "launch": constants.row_start,
        "memory": nbytes / (chip.memory_bandwidth * constants.triton_efficiency),
    }
    return Cost(sum(parts.values()), bound_of(parts))
