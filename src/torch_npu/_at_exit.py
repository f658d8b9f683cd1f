"""The end of the interpreter: operators stay registered while daemon threads may still call them.

torch.library takes its registrations back when the interpreter ends, before daemon threads stop. An operator that such a
thread calls then would fail with an internal error of the dispatcher.
"""

from __future__ import annotations

import atexit
import weakref

import torch

_NAMESPACES = ("npu", "softnpu", "softnpu_host", "aten")
_kept: list[object] = []


def _keep_operators() -> None:
    for pending in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        library = (pending.peek() or (None,))[0]
        if isinstance(library, torch.library.Library) and library.ns in _NAMESPACES:
            _kept.append(library.m)
            pending.atexit = False


def register() -> None:
    """What is registered later runs earlier: `weakref` has registered its own when torch was imported."""
    atexit.register(_keep_operators)
