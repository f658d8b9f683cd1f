"""Who wants to see every launch's tensors (dumps, AOE), and the one observer that the device calls."""

from __future__ import annotations

from collections.abc import Callable

import torch

from softnpu import _C

INPUTS, OUTPUTS = 0, 1
LaunchObserver = Callable[[int, str, list[torch.Tensor]], None]  # stage, operator, its tensors
_observers: list[LaunchObserver] = []


def add(observer: LaunchObserver) -> None:
    """Calls `observer` before (INPUTS) and after (OUTPUTS) every launch from now on."""
    _observers.append(observer)
    _C.set_launch_observer(_call_all)


def remove(observer: LaunchObserver) -> None:
    """Removes an observer; an unknown one is ignored."""
    if observer in _observers:
        _observers.remove(observer)
    if not _observers:
        _C.set_launch_observer(None)


def _call_all(stage: int, name: str, tensors: list[torch.Tensor]) -> None:
    for observer in list(_observers):
        observer(stage, name, tensors)
