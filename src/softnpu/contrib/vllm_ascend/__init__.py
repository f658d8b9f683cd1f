"""vllm_ascend.vllm_ascend_C in Python: the operators `_C_ascend` of vllm-ascend, whose kernels are code of the card.

vllm-ascend is installed with COMPILE_CUSTOM_KERNELS=0 then. The entry point of the group softnpu.kernels calls
`install`; when the program imports its extension and there is none, softnpu.contrib.vllm_ascend.extension is it. The
same holds of `mooncake.engine`, once vllm_ascend is imported.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

from softnpu.contrib import torchvision

__all__ = ["install"]

_MODULES = {
    "vllm_ascend.vllm_ascend_C": "softnpu.contrib.vllm_ascend.extension",
    "mooncake": None,
    "mooncake.engine": "softnpu.contrib.vllm_ascend.mooncake",
}


def install() -> None:
    """Makes the extension importable; twice does nothing. vLLM imports torchvision, which may be PyPI's for CUDA."""
    torchvision.install()
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Comes last: a compiled extension and an installed package are found before."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _MODULES or "vllm_ascend" not in sys.modules:
            return None
        if fullname == "mooncake.engine" and "softnpu" not in getattr(
            sys.modules["mooncake"], "__doc__", ""
        ):
            return None
        own = _MODULES[fullname]
        return importlib.machinery.ModuleSpec(fullname, _Loader(own), is_package=own is None)


class _Loader(importlib.abc.Loader):
    """The module under the program's name; an empty package where there is none of ours."""

    def __init__(self, name: str | None):
        self.name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        if self.name is None:
            self.spec = spec
            return ModuleType(spec.name, "Holds softnpu's `engine`; Mooncake is not installed.")
        module = importlib.import_module(self.name)
        assert module.__spec__ is not None
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec
