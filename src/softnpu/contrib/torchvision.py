"""torchvision built for CUDA, which PyPI gives out for x86: importable where CUDA is not.

Its library of operators cannot be loaded there, and its import then fails over operators that have no schema. Once
`torchvision.extension` has found no library, these get their schemas; calling one says that it has no kernel.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["install"]

_EXTENSION = "torchvision.extension"
#: torchvision/_meta_registrations.py gives them shape functions whether or not they exist
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_libraries: list[Any] = []


def install() -> None:
    """Acts when torchvision is imported; calling it twice does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _EXTENSION:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads the module as ever, then defines what it lacks."""

    def __init__(self, loader: Any):
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        if not module._has_ops() and not _libraries:
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            for schema in _SCHEMAS:
                library.define(schema)
            _libraries.append(library)  # its schemas live as long as it does

    def __getattr__(self, name: str) -> Any:  # get_source and the like, for inspect
        return getattr(self.loader, name)
