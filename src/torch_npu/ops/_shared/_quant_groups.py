"""Rows in groups: which group's scales a row takes, and the checks of the group lists.

Cumulative lists hold each group's end, counts its size; a group may be empty.
"""

from __future__ import annotations

import math

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._shared._indices import first_bad


def group_of_rows(ends: torch.Tensor, rows: int) -> torch.Tensor:
    """The group of each row for cumulative ends; rows past the last end get the last group."""
    row = torch.arange(rows, device=ends.device)
    group = torch.searchsorted(ends.long().contiguous(), row, right=True)
    return group.clamp(max=ends.shape[0] - 1)


def check_ends(name: str, ends: torch.Tensor, rows: int, whole: bool = True) -> None:
    """Ends do not decrease, lie in [0, rows] and, for `whole`, the last one is the number of rows."""
    if not must.has_data(ends):
        return
    host = ends.cpu().long()
    first_bad(name, f"in [0, {rows}]", host, (host < 0) | (host > rows))
    falls = torch.zeros_like(host, dtype=torch.bool)
    falls[1:] = host[1:] < host[:-1]
    first_bad(name, "non-decreasing", host, falls)
    if whole and host.numel():
        last = int(host[-1])
        must.hold(last == rows, name, f"a list that ends with the number of rows ({rows})", last)


def check_counts(name: str, counts: torch.Tensor, rows: int) -> None:
    """Counts are not negative and their sum is at most the number of rows."""
    if not must.has_data(counts):
        return
    host = counts.cpu().long()
    first_bad(name, "non-negative", host, host < 0)
    total = int(host.sum())
    must.hold(
        total <= rows, name, f"a list whose sum is at most the number of rows ({rows})", total
    )


def check_factor(name, factor, groups, width, scalars=False):
    """A scale or offset (if given) is (groups, width); (width) for one group; with `scalars` also (groups)."""
    if factor is None:
        return
    allowed: list[tuple[int, ...]] = [(groups, width)]
    if groups == 1:
        allowed.append((width,))
    if scalars and (groups,) not in allowed:
        allowed.append((groups,))
    expected = f"of shape {must.one_of(allowed)}"
    must.hold(tuple(factor.shape) in allowed, name, expected, tuple(factor.shape), ErrCode.PARAM)


def for_rows(factor, group, groups, shape):
    """A scale or offset of each row's group, ready to broadcast against a tensor of the shape."""
    by_group = wide(factor)
    if factor.dim() == 1:
        one_row = groups == 1 and factor.shape[0] == shape[-1]
        by_group = by_group.unsqueeze(0 if one_row else 1)
    return by_group[0] if group is None else by_group[group].view(*shape[:-1], -1)


def blank_rest(x, ends):
    """Rows past the last group as zeros."""
    used = torch.arange(math.prod(x.shape[:-1]), device=x.device) < ends[-1]
    return torch.where(used.view(*x.shape[:-1], 1), x, 0.0)
