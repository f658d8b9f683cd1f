"""How DTensor may divide an operator's work: the part `sharding` of an operator.

The part yields a `Sharding` for each way beside the one that every operator has, all tensors replicated. It speaks of a
mesh of one dimension; torch_npu.distributed.tensor makes those of any mesh of it. Placements are written without
torch.distributed, which few programs import: an integer is `Shard` of this dimension, None is `Replicate`, SUM and
AVERAGE are `Partial`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

SUM, AVERAGE = "sum", "avg"
Placement = int | str | None


class Sharding(NamedTuple):
    """Placements of the outputs in order, and of the arguments by name; arguments that are not named are replicated.

    The one of a tensor list is that of all its members. `even`: only where every shard has the same size. `divided`: numbers
    among the arguments of which each rank has its share, such as a number of heads.
    """

    outputs: tuple[Placement, ...]
    inputs: dict[str, Placement]
    even: bool = False
    divided: tuple[str, ...] = ()


def elementwise(
    ndim: int, *names: str, outputs: int = 1, but: int | None = None
) -> Iterator[Sharding]:
    """Tensors of one shape, divided along any dimension but one."""
    for dim in range(ndim):
        if but is None or dim != but % ndim:
            yield Sharding((dim,) * outputs, dict.fromkeys(names, dim))


def matmul(first: Any, second: Any, names: tuple[str, str]) -> Iterator[Sharding]:
    """`torch.matmul` of tensors of these shapes: a dimension of the batch, rows, columns, or the one that is summed over."""
    left, right = names
    rows, columns = len(first) > 1, len(second) > 1
    batch = max(len(first), len(second), 2) - 2
    for dim in range(batch):
        shares: dict[str, Placement] = {}
        for name, shape in ((left, first), (right, second)):
            own = dim - (batch - (len(shape) - 2))
            if own >= 0 and len(shape) > 2 and shape[own] > 1:
                shares[name] = own
        if shares:
            yield Sharding((dim,), shares)
    if rows:
        yield Sharding((batch,), {left: len(first) - 2})
    if columns:
        yield Sharding((batch + rows,), {right: len(second) - 1})
    if rows or columns:
        depth = len(second) - 2 if columns else 0
        yield Sharding((SUM,), {left: len(first) - 1, right: depth})
