"""What says which profile this is: its id, and the settings and times in profiler_info.json."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_npu.npu.utils import get_cann_version
from torch_npu.profiler import _rank, _raw
from torch_npu.profiler._messages import warn

_MAX_TRACE_ID = 1024
_ENVIRONMENT = (
    "ASCEND_GLOBAL_LOG_LEVEL", "HCCL_RDMA_TC", "HCCL_RDMA_SL", "ACLNN_CACHE_LIMIT", "HOST_CACHE_CAPACITY",
    "ASCEND_ENHANCE_ENABLE", "PYTORCH_NPU_ALLOC_CONF", "ASCEND_LAUNCH_BLOCKING", "HCCL_ALGO",
)  # fmt: skip


def trace_id(callback: Callable[[], str] | None) -> str:
    """What the program's function returns; a random id without one, or if it is wrong."""
    default = f"{uuid.uuid4().int:032X}"
    if callback is None:
        return default
    if not callable(callback):
        warn(
            "Invalid parameter custom_trace_id_callback: it cannot be called; a random id is used."
        )
        return default
    try:
        chosen = callback()
    except (RuntimeError, ValueError, TypeError, OSError) as wrong:
        warn(f"custom_trace_id_callback raised {wrong!r}; a random id is used.")
        return default
    if isinstance(chosen, str) and len(chosen) <= _MAX_TRACE_ID:
        return chosen
    warn(
        f"custom_trace_id_callback must return a str of at most {_MAX_TRACE_ID}; a random id is used."
    )
    return default


def environment() -> dict[str, str]:
    """The variables that a profile keeps."""
    return {name: os.environ.get(name, "") for name in _ENVIRONMENT}


def write_info(
    path: str, common: dict[str, Any], experimental: dict[str, Any], start_ns: int, ended: bool
) -> None:
    """profiler_info.json, with the rank in its name and in it if there is one."""
    from torch_npu import __version__

    info: dict[str, Any] = {
        "config": {"common_config": common, "experimental_config": experimental},
        "start_info": {
            "syscnt_enable": False,
            "freq": 100,
            "start_cnt": 0,
            "start_monotonic": time.monotonic_ns() - max(0, time.time_ns() - start_ns),
            "start_time": start_ns,
            "pid": os.getpid(),
        },
        "torch_npu_version": __version__,
        "cann_version": get_cann_version(),
    }
    if ended:
        info["end_info"] = {
            "collectionTimeEnd": time.time_ns(),
            "MonotonicTimeEnd": time.monotonic_ns(),
        }
    name, rank = "profiler_info.json", _rank.current()
    if rank is not None:
        name = f"profiler_info_{rank}.json"
        info["rank_id"] = rank
    _raw.write_json(Path(path) / name, info, indent=4)
