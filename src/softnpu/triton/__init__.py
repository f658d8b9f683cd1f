"""Triton kernels on npu tensors: by Triton's own interpreter (TRITON_INTERPRET=1), on the tensors' bytes themselves.

With triton installed, `import torch_npu` adds two things to it, whichever of the two is imported first: the driver `npu`,
so that `triton.runtime.driver.active` answers for the device, and an interpreter that neither copies npu tensors to
the host nor back. A kernel that is to be compiled says how it can run instead.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["install"]


def install() -> None:
    """Adds the driver and the interpreter's launch to triton: now if it is loaded, else when it is imported."""
    for name, action in _ACTIONS.items():
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            action(module)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _add_driver(module: Any) -> None:
    """triton.backends: the backend `npu`, unless triton-ascend has brought its own."""
    if "npu" in module.backends or "ascend" in module.backends:
        return
    from softnpu.triton import compiler, driver

    module.backends["npu"] = module.Backend(compiler.NPUBackend, driver.NPUDriver)


def _add_launch(module: Any) -> None:
    """triton.runtime.interpreter: a launch on npu tensors is one device task on their bytes."""
    from softnpu.triton import interpreter

    interpreter.patch(module)


_ACTIONS: dict[str, Callable[[Any], None]] = {
    "triton.backends": _add_driver,
    "triton.runtime.interpreter": _add_launch,
}


class _Finder(importlib.abc.MetaPathFinder):
    """Acts after the modules of _ACTIONS are imported; everything else passes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _ACTIONS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _ACTIONS[fullname])
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, action: Callable[[Any], None]):
        self.loader, self.action = loader, action

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        self.action(module)

    def __getattr__(self, name: str) -> Any:  # get_source and the like, for inspect
        return getattr(self.loader, name)
