"""The tables in the windows of attention and FFN workers, as CANN's AttentionToFFN and FFNToAttention lay them out.

A window starts with a table of int32, then, from the next multiple of 512 bytes on, the tokens' data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch

from torch_npu._errors import ErrCode, dist_error
from torch_npu.ops import _check as must
from torch_npu.ops.comm import _group

_ALIGN = 512
WIDTH = (1024, 8192)  # H
SCALE_ROOM = 128  # bytes after a quantized token
_PATIENCE = 120.0  # seconds until a table that nobody empties is an error
RANKS = (2, 768)


def tables(
    group: _group.Group,
    rank: int,
    info_shape: Sequence[int],
    data_shape: Sequence[int],
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The int32 table and the data in the window of a rank."""
    info_bytes = math.prod(info_shape) * 4
    start = -(-info_bytes // _ALIGN) * _ALIGN
    end = start + math.prod(data_shape) * dtype.itemsize
    window = group.window(rank, end)
    info = window[:info_bytes].view(torch.int32).view(*info_shape)
    return info, window[start:].view(dtype).view(*data_shape)


def wait_until_taken(flag: torch.Tensor, rank: int) -> None:
    """Waits while the flag is 1: the worker has not read what was sent before."""
    until = time.monotonic() + _PATIENCE
    while int(flag) == 1:
        if time.monotonic() > until:
            raise RuntimeError(
                f"npu_attention_to_ffn: rank {rank} has not taken the tokens sent before within "
                f"{_PATIENCE:.0f} seconds." + dist_error(ErrCode.TIMEOUT)
            )
        time.sleep(1e-4)


def check_group(group: str, world_size: int) -> None:
    low, high = RANKS
    must.hold(low <= world_size <= high, "world_size", f"in [{low}, {high}]", world_size)
    _group.check_name("group", group, "world_size", world_size)


def check_width(name: str, value: int, high: int = WIDTH[1]) -> None:
    must.hold(WIDTH[0] <= value <= high, name, f"of width in [{WIDTH[0]}, {high}]", value)


def check_values(name: str, tensor: torch.Tensor, size: int, what: str) -> None:
    """Every value is in [0, size), where there are values."""
    if must.has_data(tensor) and tensor.numel():
        low, high = int(tensor.min()), int(tensor.max())
        must.hold(low >= 0 and high < size, name, f"in [0, {what} = {size})", f"{low} to {high}")
