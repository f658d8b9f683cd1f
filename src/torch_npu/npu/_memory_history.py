"""Snapshots of device memory and its history, in the format of torch's memory viewer (pytorch.org/memory_viz)."""

from __future__ import annotations

import pickle
import sys
from types import FrameType
from typing import Any

from softnpu import _C
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu import _alloc_conf
from torch_npu.npu._device import memory_index
from torch_npu.npu._memory_pool import not_with_plugin

_CONTEXTS = (None, "state", "alloc", "all")
_MAX = 2**63 - 1


def memory_snapshot() -> list[dict[str, Any]]:
    """The segments of all devices with their blocks."""
    not_with_plugin("snapshot")
    return [s for index in range(_C.device_count()) for s in _C.memory_segments(index)]


def pool_snapshot(mempool_id: tuple[int, int]) -> list[dict[str, Any]]:
    """The segments of one private pool."""
    return [s for s in memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(mempool_id)]


def _frames() -> list[dict[str, Any]]:
    """The Python stack of the caller of the operator that allocates, innermost first."""
    frames = []
    frame: FrameType | None = sys._getframe().f_back  # None on a thread of autograd
    while frame is not None:
        code = frame.f_code
        frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return frames


def _record_memory_history(enabled: str | None = "all", *args: Any, **kwargs: Any) -> None:
    """Records who allocates and frees device memory, for `_snapshot`; None stops it.

    Args:
        enabled: "state" keeps the live blocks' origin, "all" the history of events too.
        context: whose stack is kept: "state" (live blocks), "alloc" or "all" (frees too), None for no stacks.
        stacks: "python" or "all"; there are no C++ frames here.
        max_entries: the most events that are kept; older ones are dropped.
        device: one device; all of them by default.
    """
    if isinstance(enabled, bool):  # the old form, enabled: bool
        enabled = "all" if enabled else None
    _record_memory_history_impl(enabled, *args, **kwargs)


def _record_memory_history_impl(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = _MAX,
    device: Any = None,
) -> None:
    not_with_plugin("recordHistory")
    if enabled not in (None, "state", "all"):
        raise RuntimeError(
            f"expected enabled to be None, 'state' or 'all', but received {enabled!r}"
            + pta_error(ErrCode.PARAM)
        )
    if context not in _CONTEXTS:
        raise RuntimeError(
            f"expected context to be None, 'state', 'alloc' or 'all', but received {context!r}"
            + pta_error(ErrCode.PARAM)
        )
    if stacks not in ("python", "all"):
        raise RuntimeError(
            f"expected stacks to be 'python' or 'all', but received {stacks!r}"
            + pta_error(ErrCode.PARAM)
        )
    _C.ensure_started()
    most = 1 if enabled == "state" else max(1, min(int(max_entries), 2**31))
    frames = None if enabled is None or context is None else _frames
    indices = range(_C.device_count()) if device is None else [memory_index(device)]
    for index in indices:
        _C.record_history(index, enabled is not None, most, frames, context == "all")


def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
    """Segments, the history of each device and the allocator's settings."""
    if augment_with_fx_traces:
        raise NotImplementedError("_snapshot: augment_with_fx_traces is not supported")
    segments = memory_snapshot()
    traces = [_C.memory_history(index) for index in range(_C.device_count())]
    if device is not None:
        index = memory_index(device)
        segments = [s for s in segments if s["device"] == index]
        traces = [trace if i == index else [] for i, trace in enumerate(traces)]
    settings = _alloc_conf.current
    return {
        "segments": segments,
        "device_traces": traces,
        "external_annotations": [],
        "allocator_settings": {
            "PYTORCH_NPU_ALLOC_CONF": ",".join(f"{k}:{v}" for k, v in settings.items()),
            "max_split_size": settings.get("max_split_size_mb", -1),
            "garbage_collection_threshold": settings.get("garbage_collection_threshold", 0.0),
            "expandable_segments": settings.get("expandable_segments", False),
        },
    }


def _dump_snapshot(
    filename: str = "dump_snapshot.pickle", augment_with_fx_traces: bool = False
) -> None:
    """Writes `_snapshot()` to a file that torch's memory viewer opens."""
    snapshot = _snapshot(augment_with_fx_traces=augment_with_fx_traces)
    with open(filename, "wb") as file:
        pickle.dump(snapshot, file)


def _save_segment_usage(
    filename: str = "output.svg", snapshot: dict[str, Any] | None = None
) -> None:
    """Draws the segments as an SVG, with torch's own drawing (it downloads FlameGraph)."""
    from torch.cuda._memory_viz import segments

    with open(filename, "w") as file:
        file.write(segments(_snapshot() if snapshot is None else snapshot))


def _save_memory_usage(
    filename: str = "output.svg", snapshot: dict[str, Any] | None = None
) -> None:
    """Draws the live blocks as an SVG, with torch's own drawing (it downloads FlameGraph)."""
    from torch.cuda._memory_viz import memory

    with open(filename, "w") as file:
        file.write(memory(_snapshot() if snapshot is None else snapshot))
