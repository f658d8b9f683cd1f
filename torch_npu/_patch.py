"""The only place that patches torch; every patch is recorded and can be undone."""

from __future__ import annotations

from typing import Any

_applied: list[tuple[Any, str, Any]] = []
_MISSING = object()


def replace(owner: Any, name: str, value: Any) -> Any:
    """Sets `owner.name`, remembers what stood there and returns it."""
    before = getattr(owner, name, _MISSING)
    _applied.append((owner, name, before))
    setattr(owner, name, value)
    return None if before is _MISSING else before


def apply() -> None:
    """All patches that the device needs."""
    from torch_npu import _multiprocessing

    _multiprocessing.register()


def undo() -> None:
    """Puts back everything that `replace` changed, last first."""
    while _applied:
        owner, name, before = _applied.pop()
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
