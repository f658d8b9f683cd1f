"""Triton kernels on npu tensors: by Triton's own interpreter (TRITON_INTERPRET=1), on the tensors' bytes themselves.

With triton installed, `import torch_npu` adds two things to it, whichever of the two is imported first: the driver `npu`,
so that `triton.runtime.driver.active` answers for the device, and an interpreter that neither copies npu tensors to
the host nor back. Kernels are interpreted unless TRITON_INTERPRET says otherwise; one that is to be compiled says how it
can run instead. `triton.language.extra.cann` has the names that kernels for the card use.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
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
    from triton.language import semantic

    from softnpu.triton import bfloat16, interpreter, shapes

    try:
        from triton import _utils
    except ImportError:  # before Triton 3.4
        from triton.language import _utils

    interpreter.patch(module)
    bfloat16.patch(module)
    shapes.patch(semantic, _utils)


def _interpret(module: Any) -> None:
    """triton.knobs: a device without a compiler interprets, unless the variable or another GPU decides.

    It must come before triton.language, whose own functions are made by triton.jit too.
    """
    import torch

    if "TRITON_INTERPRET" not in os.environ and not torch.cuda.is_available():
        module.runtime.interpret = True


def _interpret_by_variable(module: Any) -> None:
    """triton.runtime.jit: before Triton 3.4 there are no knobs, and the variable is read for each kernel."""
    import torch

    if importlib.util.find_spec("triton.knobs") is None and not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")


_ACTIONS: dict[str, Callable[[Any], None]] = {
    "triton.knobs": _interpret,
    "triton.runtime.jit": _interpret_by_variable,
    "triton.backends": _add_driver,
    "triton.runtime.interpreter": _add_launch,
}


_CANN = "triton.language.extra.cann"


class _Finder(importlib.abc.MetaPathFinder):
    """Acts after the modules of _ACTIONS are imported, and finds triton.language.extra.cann; everything else passes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == _CANN or fullname.startswith(f"{_CANN}."):
            return _cann_spec(fullname, path)
        if fullname not in _ACTIONS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _ACTIONS[fullname])
        return spec


def _cann_spec(fullname: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """triton-ascend's module if it is there, else the one of softnpu.triton under this name."""
    own = f"softnpu.triton.cann{fullname.removeprefix(_CANN)}"
    if importlib.machinery.PathFinder.find_spec(fullname, path) is not None:
        return None
    if importlib.util.find_spec(own) is None:
        return None
    return importlib.machinery.ModuleSpec(fullname, _Alias(own), is_package=fullname == _CANN)


class _Alias(importlib.abc.Loader):
    """Gives a module a second name: its spec stays that of the first."""

    def __init__(self, name: str):
        self.name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.name)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


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
