"""npu_grouped_matmul of 8-bit floats on Ascend950: groups of rows or of depths, and the ways of scaling them.

| scales | weight, rows | weight, depths | x, rows | x, depths |
|---|---|---|---|---|
| by group | (G), (G, 1) | (G), (G, 1) | (G), (G, 1) | (G), (G, 1) |
| by column or row | (G, N) | (G, N) | (M) | (G, M) |
| by tiles of 128 | (G, ceil(K / 128), ceil(N / 128)) | (K // 128 + G, ceil(N / 128)) | (M, ceil(K / 128)) | (M, K // 128 + G) |
| microscaling | (G, ceil(K / 64), N, 2) | (K // 64 + G, N, 2) | (M, ceil(K / 64), 2) | (M, K // 64 + G, 2) |

The scales of a group of depths that starts at depth d, the g-th, begin at d // 128 + g (d // 64 + g).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._scales import scale_of
from torch_npu.ops.matmul._groups import Group
from torch_npu.ops.matmul.npu_quant_matmul import block_product, exact_product

#: depths and columns that share a scale in the tiled form
TILE = 128

#: upstream's `group_type`
ROWS, DEPTHS = 0, 2


def tiles(size: int) -> int:
    """How many tiles cover a size."""
    return -(-size // TILE)


def tiled(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    per_token: torch.Tensor | None,
    groups: int,
    group_type: int,
) -> bool:
    """Whether the scales are those of tiles: known by their shapes alone, as upstream tells it."""
    if scale is None or per_token is None or scale.dim() != weight.dim():
        return False
    depth, columns = weight.shape[-2:]
    slots = depth // TILE + groups if group_type == DEPTHS else tiles(depth)
    of_x = tuple(per_token.shape) == (x.shape[0], slots)
    return of_x and tuple(scale.shape[-2:]) == (slots, tiles(columns))


def _by_group(per_token: torch.Tensor, rows: int, groups: int, group_type: int) -> bool:
    """Whether the scales of x are one a group; where the groups are as many as rows, one a row."""
    if per_token.dim() == 2:
        return per_token.shape[1] == 1
    return per_token.shape[0] == groups and (group_type == DEPTHS or groups != rows)


def _scaled(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, token: torch.Tensor | None
) -> torch.Tensor:
    y = exact_product(x, weight) * scale.reshape(1, -1)
    return y if token is None else y * token.reshape(-1, 1)


def rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    per_token: torch.Tensor | None,
    groups: Sequence[Group],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Groups of rows, each with its weight (E, K, N); rows of no group are zero."""
    count = weight.shape[0]
    whole = x.new_zeros(x.shape[0], weight.shape[2], dtype=torch.float32)
    by_tiles = tiled(x, weight, scale, per_token, count, ROWS)
    scale = scale_of(scale)
    for group in groups:
        part, index = slice(group.start, group.start + group.size), group.weight
        if not group.size:
            continue
        token = None
        if per_token is not None:
            single = not by_tiles and _by_group(per_token, x.shape[0], count, ROWS)
            token = per_token[index] if single else per_token[part]
        if by_tiles:
            sizes = (1, TILE, TILE)
            y = block_product(x[part], weight[index], token, scale[index], None, sizes)
        else:
            y = _scaled(x[part], weight[index], scale[index], token)
        whole[part] = y
    return whole.to(dtype)


def depths(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    per_token: torch.Tensor | None,
    groups: Sequence[Group],
    dtype: torch.dtype,
) -> torch.Tensor:
    """Groups of depths of x (M, K) and weight (K, N): (G, M, N)."""
    whole = x.new_zeros(len(groups), x.shape[0], weight.shape[1], dtype=torch.float32)
    by_tiles = tiled(x, weight, scale, per_token, len(groups), DEPTHS)
    scale = scale_of(scale)
    for index, group in enumerate(groups):
        if not group.size:
            continue
        part = slice(group.start, group.start + group.size)
        left, right = x[:, part], weight[part]
        if by_tiles:
            assert per_token is not None
            first = group.start // TILE + index
            own = slice(first, first + tiles(group.size))
            sizes = (1, TILE, TILE)
            y = block_product(left, right, per_token[:, own], scale[own], None, sizes)
        else:
            y = _scaled(left, right, scale[index], None if per_token is None else per_token[index])
        whole[index] = y
    return whole.to(dtype)


def microscaled_depths(
    x: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    per_token: torch.Tensor,
    groups: Sequence[Group],
    dtype: torch.dtype,
) -> torch.Tensor:
    """`depths` with scales of powers of two for 32 depths each."""
    whole = x.new_zeros(len(groups), x.shape[0], weight.shape[1], dtype=torch.float32)
    for index, group in enumerate(groups):
        if not group.size:
            continue
        part = slice(group.start, group.start + group.size)
        first = group.start // (_mx.BLOCK * _mx.PAIR) + index
        own = slice(first, first + _mx.pairs(group.size))
        left = _mx.left(x[:, part], None, per_token[:, own])
        whole[index] = torch.matmul(left, _mx.right(weight[part], None, scale[own]))
    return whole.to(dtype)
