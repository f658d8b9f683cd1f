"""vllm_ascend.vllm_ascend_C in Python: the operators `_C_ascend` of vllm-ascend, whose kernels are code of the card.

vllm-ascend is installed with COMPILE_CUSTOM_KERNELS=0 then. The entry point of the group softnpu.kernels calls
`install`; when the program imports its extension and there is none, softnpu.contrib.vllm_ascend.extension is it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

__all__ = ["install"]

_EXTENSION = "vllm_ascend.vllm_ascend_C"


def install() -> None:
    """Makes the extension importable; twice does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Comes last: a compiled extension is found before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _EXTENSION:
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader())


class _Loader(importlib.abc.Loader):
    """The module under the program's name."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module("softnpu.contrib.vllm_ascend.extension")
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec
