"""Fused attention: products on the cube unit, softmax on the vector cores, keys and values from memory, all at once.

Every score passes the vector cores, whatever the size of a head: with heads of 128 they are the limit, with the latent
heads of 576 the cube unit is.
"""

from __future__ import annotations

from dataclasses import dataclass

from softnpu.chips import Chip
from softnpu.plan.clock.constants import Constants
from softnpu.plan.clock.figures import Cost, bound_of, peak
from softnpu.plan.tasks import bits

_ROWS = 128  # of queries that a core takes at a time
_DECODE = 16  # up to so many queries, keys are split over cores and no core idles


@dataclass(frozen=True, slots=True)
class Attention:
    """`queries` rows a head against `keys`; `fraction` of the scores is needed (a causal mask: one half)."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    key_size: int
    value_size: int
    dtype: str
    fraction: float = 1.0
    latent: bool = (
        False  # keys and values are the same bytes (multi-head latent attention, absorbed)
    )
    backward: bool = False
    cache_bits: int = 0  # of an element of keys and values; 0: of dtype

    @property
    def scores(self) -> float:
        return self.fraction * self.batch * self.heads * self.queries * self.keys

    @property
    def flops(self) -> float:
        both = 2.0 * self.scores * (self.key_size + self.value_size)
        return 2.5 * both if self.backward else both  # five products instead of two

    @property
    def cache(self) -> float:
        """Bytes of keys and values."""
        size = self.key_size if self.latent else self.key_size + self.value_size
        width = (self.cache_bits or bits(self.dtype)) / 8
        return self.batch * self.kv_heads * self.keys * size * width

    @property
    def rows(self) -> float:
        """Bytes of queries and results."""
        size = bits(self.dtype) / 8
        return self.batch * self.heads * self.queries * (self.key_size + self.value_size) * size


def cost(shape: Attention, chip: Chip, constants: Constants) -> Cost:
    """The time of one kernel."""
    idle = _imbalance(shape, chip)
    passes = constants.attention_backward if shape.backward else 1.0
    read = shape.cache / (chip.memory_bandwidth * constants.attention_memory)
    rows = shape.rows / (chip.memory_bandwidth * constants.memory_efficiency)
    parts = {
        "vector": passes * idle * shape.scores / (chip.vector_cores * constants.softmax_rate),
        "cube": idle * shape.flops / (peak(chip, shape.dtype) * constants.attention_cube),
        "memory": passes * (read + rows),
    }
    bound = bound_of(parts | {"launch": constants.attention_start})
    return Cost(constants.attention_start + max(parts.values()), bound, shape.flops)


def _imbalance(shape: Attention, chip: Chip) -> float:
    """How much longer the last wave makes it than an even spread of the rows over the cores would.

    Whole blocks run in waves; the shorter last block of a head runs in what they leave free, then in waves of its own.
    """
    if shape.queries <= _DECODE:
        return 1.0
    heads, cores = shape.batch * shape.heads, chip.cube_cores
    whole, rest = divmod(shape.queries, _ROWS)
    waves = -(-heads * whole // cores)
    rows = waves * _ROWS
    if rest:
        free = waves * cores - heads * whole
        left = max(0, heads - free * (_ROWS // rest))
        rows += -(-left // cores) * rest
    return rows * cores / (heads * shape.queries)
