"""The collectives of a profile, as rows of the raw data."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

from softnpu.collectives import HCCL_NAMES


@dataclass(frozen=True)
class Communication:
    """One finished communication of this rank; times are nanoseconds since the epoch."""

    name: str  # as HCCL's operators: allReduce, allGather, reduceScatter, broadcast, send, receive, alltoallv, ...
    group: str  # the communicator's name
    ranks: tuple[int, ...]  # global ranks of the group
    rank: int  # this rank, global
    peer: int  # the other rank of send and receive, else -1
    count: int  # elements of this rank's input
    dtype: str  # fp32, bfp16, ...
    size: int  # bytes of this rank's input
    device: int
    stream: int
    thread: int  # of the operating system
    start_ns: int
    end_ns: int


_TYPES = {
    "float": ("fp32", 4), "double": ("fp64", 8), "c10::Half": ("fp16", 2), "c10::BFloat16": ("bfp16", 2),
    "long int": ("int64", 8), "int": ("int32", 4), "short int": ("int16", 2), "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1), "bool": ("uint8", 1),
}  # fmt: skip


def from_transfers(
    transfers: list[list[Any]], rank: int, groups: dict[str, Any], device: int
) -> list[list[Any]]:
    """Rows of what the network library did. It does not say for which group: with several, the name is `several`."""
    name, ranks = "several", (rank,)
    if len(groups) == 1:
        ((name, group),) = groups.items()
        ranks = tuple(group["global_ranks"])
    rows = []
    for operation, start, end, thread, shapes, dtypes in transfers:
        known, width = _TYPES.get(dtypes[0] if dtypes else "", ("n/a", 0))
        count = sum(math.prod(shape) for shape in shapes)
        hccl = HCCL_NAMES.get(operation, operation)
        one = Communication(
            hccl, name, ranks, rank, -1, count, known, count * width, device, 0, thread, start, end
        )
        rows.append(list(astuple(one)))
    return rows


def from_row(row: list[Any]) -> Communication:
    name, group, ranks, *rest = row
    return Communication(name, group, tuple(ranks), *rest)
