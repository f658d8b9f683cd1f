"""Group lists: which rows (or depths) belong to which weight, from any of upstream's notations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_npu._errors import BadArgument, ErrCode, operator_error

#: upstream's `group_list_type`: ends of the groups, sizes, or pairs of (group, size)
ENDS, SIZES, PAIRS = 0, 1, 2


class Group(NamedTuple):
    """One group: its weight, and the part of the grouped axis it takes."""

    weight: int
    start: int
    size: int


def read(
    operator: str,
    values: torch.Tensor | Sequence[int],
    kind: int,
    weights: int,
    total: int,
    *,
    exact: bool,
    axis: str = "rows of 'x'",
) -> list[Group]:
    """The groups of a list in order, checked.

    This reads the values, so it belongs in a kernel, where they are at hand even while a graph is
    captured or a stream waits. `exact` asks for every position of the axis to belong to a group;
    otherwise a tail may be left over.
    """
    plain = values.tolist() if isinstance(values, torch.Tensor) else list(values)

    def bad(expected: str, received: object) -> RuntimeError:
        return operator_error(
            operator, BadArgument("group_list", expected, received, ErrCode.VALUE)
        )

    groups: list[Group] = []
    start = 0
    for place, value in enumerate(plain):
        weight, size = place, value
        if kind == ENDS:
            if value < start:
                expected = "non-negative and non-decreasing"
                raise bad(expected, f"{value} at index {place}, after {start}")
            size = value - start
        elif kind == PAIRS:
            weight, size = value
            if not 0 <= weight < weights:
                raise bad(f"of groups from 0 to {weights - 1}", f"{weight} at index {place}")
        if size < 0:
            raise bad("non-negative", f"{size} at index {place}")
        if start + size > total:
            expected = f"such that the groups cover {total} {axis}"
            raise bad(expected, f"{start + size} by index {place} ({value})")
        groups.append(Group(weight, start, size))
        start += size
    if exact and start != total:
        last = f"{start} (the last value is {plain[-1]})" if plain else "0"
        raise bad(f"such that the groups cover {total} {axis}", last)
    return groups


def matching(operator: str, groups: Sequence[Group], sizes: Sequence[int]) -> None:
    """The groups are as large as the tensors of `x` that they name."""
    for place, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        if group.size != size:
            expected = f"of the sizes {list(sizes)} that the tensors of 'x' have"
            found = BadArgument(
                "group_list", expected, f"{group.size} at index {place}", ErrCode.VALUE
            )
            raise operator_error(operator, found)
