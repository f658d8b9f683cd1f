"""Rows for columns between the ranks: the exchange of npu_all_to_all_matmul and npu_matmul_all_to_all."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops.comm import _group

#: the ranks and the ways of communication that a chip has
_RANKS = {"A2": (2, 4, 8)}
_RANKS_ELSEWHERE = (2, 4, 8, 16)
_MODES = {"A2": (None, "aiv"), "A3": (None, "ai_cpu"), "A5": (None, "ai_cpu", "ccu")}
_WIDEST = 65535


def rows_to_columns(group: _group.Group, x: torch.Tensor) -> torch.Tensor:
    """(M, H) -> (M / ranks, ranks * H): each rank keeps its part of the rows, with the columns of all ranks."""
    ranks, rows = group.size, x.shape[0] // group.size
    parts = group.all_to_all(x, [rows] * ranks, [rows] * ranks)
    width = x.shape[1]
    return parts.view(ranks, rows, width).transpose(0, 1).reshape(rows, ranks * width)


def columns_to_rows(group: _group.Group, x: torch.Tensor) -> torch.Tensor:
    """(M, N) -> (M * ranks, N / ranks): each rank keeps its part of the columns, with the rows of all ranks."""
    ranks, rows = group.size, x.shape[0]
    width = x.shape[1] // ranks
    parts = x.view(rows, ranks, width).transpose(0, 1).reshape(ranks * rows, width)
    return group.all_to_all(parts, [rows] * ranks, [rows] * ranks)


def check(x1, x2, hcom, world_size, bias, all2all_axes, comm_mode, depth, axes):
    """The constraints of both operators; `depth` is the first size of x2."""
    must.dtype("x1", x1, torch.float16, torch.bfloat16)
    must.ndim("x1", x1, 2)
    must.same_dtype("x2", x2, "x1", x1)
    must.ndim("x2", x2, 2)
    family = chips.current().family
    must.choice("world_size", world_size, _RANKS.get(family, _RANKS_ELSEWHERE))
    _group.check_name("hcom", hcom, "world_size", world_size)
    must.shape("x2", x2, (depth, None))
    must.hold(0 < depth <= _WIDEST, "x2", f"of a first size in [1, {_WIDEST}]", tuple(x2.shape))
    must.hold(x2.shape[1] > 0, "x2", "not empty", tuple(x2.shape))
    wanted = torch.float16 if x1.dtype == torch.float16 else torch.float32
    must.dtype("bias", bias, wanted)
    must.shape("bias", bias, (x2.shape[1],))
    given = None if all2all_axes is None else list(all2all_axes)
    must.choice("all2all_axes", given, (None, [], axes))
    must.choice("comm_mode", comm_mode, _MODES.get(family, (None,)))
