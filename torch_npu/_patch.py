"""The only place that patches torch; every patch is recorded and can be undone."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

_applied: list[Callable[[], None]] = []
_MISSING = object()


def replace(owner: Any, name: str, value: Any) -> Any:
    """Sets `owner.name`, remembers what stood there and returns it."""
    before = getattr(owner, name, _MISSING)
    setattr(owner, name, value)
    if before is _MISSING:
        _applied.append(lambda: delattr(owner, name))
        return None
    _applied.append(lambda: setattr(owner, name, before))
    return before


def replace_entry(table: MutableMapping[Any, Any], key: Any, value: Any) -> None:
    """Sets `table[key]` and remembers what stood there."""
    before = table.get(key, _MISSING)
    table[key] = value
    if before is _MISSING:
        _applied.append(lambda: table.__delitem__(key))
    else:
        _applied.append(lambda: table.__setitem__(key, before))


def apply() -> None:
    """All patches that the device needs."""
    _share_between_processes()
    _dlpack_device()


def undo() -> None:
    """Puts back everything that was replaced, last first."""
    while _applied:
        _applied.pop()()


def _share_between_processes() -> None:
    """The pickler of `torch.multiprocessing` learns about NPU storages and tensors."""
    from torch_npu import _multiprocessing

    for kind, reducer in _multiprocessing.REDUCERS.items():
        replace_entry(ForkingPickler._extra_reducers, kind, reducer)  # type: ignore[attr-defined]


def _dlpack_device() -> None:
    """torch knows PrivateUse1 by its old name only when it is asked for a tensor's DLPack device."""
    import torch
    from torch.overrides import has_torch_function_unary
    from torch.utils.dlpack import DLDeviceType

    before = torch.Tensor.__dlpack_device__

    def __dlpack_device__(self: torch.Tensor) -> tuple[Any, int]:
        if self.device.type == "npu" and not has_torch_function_unary(self):
            return DLDeviceType.kDLExtDev, self.device.index
        return before(self)

    replace(torch.Tensor, "__dlpack_device__", __dlpack_device__)
