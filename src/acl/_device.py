"""The devices behind acl: what is initialized, which contexts, streams and events there are.

torch_npu is imported when a function first needs the device, so that `import acl` costs nothing.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any


class _Runtime:
    """What the functions of this process have made; `reset` is for tests."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.initialized = False
        self.finalized = False
        self.contexts: dict[int, int] = {}  # handle -> device
        self.streams: dict[int, Any] = {}
        self.events: dict[int, Any] = {}
        self.memory: dict[int, tuple[int, int]] = {}  # address -> (bytes, device)
        self.host: dict[int, Any] = {}  # address -> the tensor that holds it
        self.registered: dict[int, int] = {}  # address of host memory that devices may use -> bytes
        self.subscribers: dict[tuple[int, int], int] = {}  # (device, stream) -> thread
        self.reports: dict[int, Any] = {}  # thread -> the callbacks that wait for it
        self.threads: dict[int, threading.Thread] = {}
        self.handles = itertools.count(1 << 33)  # far from those that torch.npu hands out
        self.local = threading.local()


runtime = _Runtime()


def module() -> Any:
    """softnpu._C, with torch_npu imported and the device registered."""
    import torch_npu  # noqa: F401
    from softnpu import _C

    return _C


def count() -> int:
    return module().device_count()


def has_context() -> bool:
    """Whether this thread has a device: set here, or in use by torch."""
    return getattr(runtime.local, "context", None) is not None or module().started()


def stream(handle: int) -> Any:
    """The stream of a handle made here or by torch.npu; 0 is the default stream, None if there is none such."""
    import torch

    if handle in runtime.streams:
        return runtime.streams[handle]
    if handle == 0:
        return torch.npu.default_stream()
    if not 0 < handle <= 128:  # torch.npu's pools end before
        return None
    device = torch.npu.current_device()
    kind = torch._C._accelerator_getStream(device).device_type
    return torch.npu.Stream(stream_id=handle - 1, device_index=device, device_type=kind)
