"""Sums over chosen rows of a table, and their gradients: how the operators on regions of interest pool.

A table has a row of channels for each pixel. A bag is a list of rows with weights; its result is their weighted sum.
"""

from __future__ import annotations

import torch

#: how many numbers are held at once while gradients are spread
BUDGET = 1 << 22


def gather(
    table: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor | None = None,
    starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """(bags, channels). `rows` is (bags, length), or one list in which the bags begin at `starts`."""
    return torch.nn.functional.embedding_bag(
        rows, table, starts, mode="sum", per_sample_weights=weights
    )


def spread(
    into: torch.Tensor,
    values: torch.Tensor,
    rows: torch.Tensor,
    bags: torch.Tensor,
    weights: torch.Tensor,
) -> None:
    """Adds to each row of `into` its weight times the value of its bag; the transpose of `gather`."""
    step = max(1, BUDGET // max(1, values.shape[1]))
    for row, bag, weight in zip(
        rows.split(step), bags.split(step), weights.split(step), strict=True
    ):
        into.index_add_(0, row, values[bag] * weight[:, None])
