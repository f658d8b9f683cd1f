"""Products on the cube unit: tiles spread over the cores, in waves.

A tile of the result is at most 128 x 256: its fp32 sums fill the 128 KiB of L0C, so that a core writes a result out before
it begins the next one. Hence the time of a wave is the inner loop over K, and the result's store comes on top; loads of
the operands overlap with the loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from softnpu.chips import Chip
from softnpu.plan.clock.constants import Constants
from softnpu.plan.clock.figures import Cost, bound_of, frequency, peak
from softnpu.plan.tasks import bits

_TILE = 128 * 256  # fp32 sums in L0C
_SIDES = (64, 128, 256)
_SHORTEST_PART = 512  # of K, where it is split over cores


@dataclass(frozen=True, slots=True)
class Product:
    """`batch` products of M x K and K x N."""

    m: int
    n: int
    k: int
    dtype: str
    batch: int = 1
    loads: float = 0.0  # bytes of the operands, where they are not those of m, n, k, dtype
    stores: float = 0.0

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def read(self) -> float:
        size = bits(self.dtype) / 8
        return self.loads or self.batch * (self.m + self.n) * self.k * size

    @property
    def written(self) -> float:
        size = max(2, bits(self.dtype) / 8)
        return self.stores or self.batch * self.m * self.n * size


def cost(product: Product, chip: Chip, constants: Constants) -> Cost:
    """The time of one kernel."""
    if not product.flops:
        return Cost(constants.cube_start, "launch")
    memory = chip.memory_bandwidth * constants.memory_efficiency
    compute = _compute(product, chip, constants, memory)
    load, store = product.read / memory, product.written / memory
    bound = bound_of({"cube": compute, "memory": max(load, store), "launch": constants.cube_start})
    return Cost(constants.cube_start + max(compute, load) + store, bound, product.flops)


def _compute(product: Product, chip: Chip, constants: Constants, memory: float) -> float:
    """The best way to cut the result into tiles, and K into parts where there are fewer tiles than cores."""
    speed = peak(chip, product.dtype) / chip.cube_cores * constants.cube_efficiency
    load = constants.core_load * frequency(chip)
    size = bits(product.dtype) / 8
    best = math.inf
    for high, wide in _tiles(product.m, product.n):
        tiles = product.batch * -(-product.m // high) * -(-product.n // wide)
        for parts in range(1, max(1, chip.cube_cores // tiles) + 1):
            k = max(product.k / parts, min(product.k, _SHORTEST_PART))
            inner = max(2 * high * wide * k / speed, (high + wide) * k * size / load)
            sums = 0.0 if parts == 1 else 8.0 * parts * product.m * product.n * product.batch
            best = min(best, -(-tiles * parts // chip.cube_cores) * inner + sums / memory)
    return best


def _tiles(m: int, n: int) -> set[tuple[int, int]]:
    def side(limit: int, length: int) -> int:
        return min(limit, -(-length // 16) * 16)

    return {
        (side(a, m), side(b, n)) for a in _SIDES for b in _SIDES if side(a, m) * side(b, n) <= _TILE
    }
