"""How DTensor may divide products of groups: columns, depth, and rows where every group has a matrix of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch_npu.ops._sharding import SUM, Sharding


def shardings(
    x: Any, weight: Any, bias: Any, group_type: int | None, act_type: int | None
) -> Iterator[Sharding]:
    if group_type is not None and group_type > 0:
        raise NotImplementedError(
            f"npu_grouped_matmul: group_type={group_type} does not work on DTensor; only -1 and 0 do"
        )
    depth, last = weight[0].ndim - 2, x[0].ndim - 1
    if not bias and not act_type:
        yield Sharding((SUM,), {"weight": SUM})
        yield Sharding((SUM,), {"x": SUM})
        yield Sharding((SUM,), {"x": last, "weight": depth})
    yield Sharding((last,), {"weight": depth + 1, "bias": depth})
    if len(x) > 1 and len(x) == len(weight) and group_type == -1:
        for dim in range(last):
            yield Sharding((dim,), {"x": dim})
