"""Which rank a profile belongs to, and which communicators it is part of."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist


def available() -> bool:
    """Whether this PyTorch can have process groups."""
    return dist.is_available()


def distributed() -> bool:
    """Whether this program is part of a process group."""
    return dist.is_available() and dist.is_initialized()


def current() -> int | None:
    """The global rank; None in a program that is not distributed."""
    text = os.environ.get("RANK", "")
    if text.isdecimal():
        return int(text)
    return dist.get_rank() if distributed() else None


def groups() -> dict[str, dict[str, Any]]:
    """Every hccl communicator by its name: the group's name, this rank in it, its global ranks."""
    if not distributed():
        return {}
    from torch.distributed.distributed_c10d import _get_default_group, _world

    found: dict[str, dict[str, Any]] = {}
    rank = dist.get_rank()
    default = _get_default_group()
    for group, (backend, _) in _world.pg_map.items():
        if "hccl" not in str(backend).lower():
            continue
        name = communicator(group, rank)
        if name:
            found[name] = {
                "group_name": "default_group" if group is default else group.group_name,
                "group_rank": dist.get_group_rank(group, rank),
                "global_ranks": dist.get_process_group_ranks(group),
            }
    return found


def communicator(group: Any, rank: int) -> str:
    """The name under which the backend knows the group; empty before its first communication."""
    import torch

    backend = group._get_backend(torch.device("npu"))
    ask = getattr(backend, "get_hccl_comm_name", None)
    return ask(rank, init_comm=False) if ask is not None else group.group_name
