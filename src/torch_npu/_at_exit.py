"""The end of the interpreter, while daemon threads still use the device.

Such a thread would end in one of two ways. torch.library takes its registrations back when the interpreter ends, so
that an operator fails with an internal error of the dispatcher; and a thread that comes back from an operator of PyTorch
after that aborts the process, on the CPU device too. So operators stay registered, and daemon threads that launch one at
that time wait in it for the process to be gone.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from typing import Any

import torch

from torch_npu.npu import _observe

_NAMESPACES = ("npu", "softnpu", "softnpu_host", "aten")
_OURS = (
    "softnpu",
    "npu-save-async",
)  # threads that launch nothing, by the beginning of their names
_GRACE = 0.05  # seconds for threads to come to their next launch
_kept: list[object] = []


def register() -> None:
    """What is registered later runs earlier: `weakref` has registered its own when torch was imported."""
    atexit.register(_end)


def _end() -> None:
    daemons = [
        thread
        for thread in threading.enumerate()
        if _is_daemon(thread) and not thread.name.startswith(_OURS)
    ]
    if not daemons:
        return
    _keep_operators()
    if torch.npu.is_initialized():
        _observe.add(_hold)
        time.sleep(_GRACE)


def _is_daemon(thread: threading.Thread) -> bool:
    """Not autograd's threads, which Python did not start: they may work for the main thread."""
    return thread.daemon and not isinstance(thread, threading._DummyThread)  # type: ignore[attr-defined]


def _hold(*launch: Any) -> None:
    if _is_daemon(threading.current_thread()):
        threading.Event().wait()


def _keep_operators() -> None:
    for pending in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        library = (pending.peek() or (None,))[0]
        if isinstance(library, torch.library.Library) and library.ns in _NAMESPACES:
            _kept.append(library.m)
            pending.atexit = False
