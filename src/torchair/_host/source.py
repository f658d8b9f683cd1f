"""Inductor's output as text: kept by caches, and run again in another process without Inductor.

Inductor's text imports all of Inductor and asks it for every compiled kernel, which takes seconds. `Portable` is the
same program with its kernels named by the libraries that hold them, and without what only compilation needs.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from softnpu import torch_versions

_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
_DATA_PTR = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
#: what Inductor's `extern_kernels` are, as far as they are functions of torch
_EXTERN = {
    name: getattr(torch, name)
    for name in ("mm", "addmm", "bmm", "baddbmm", "convolution", "_int_mm")
}


@contextlib.contextmanager
def compiled_in(folder: Path) -> Iterator[None]:
    """Libraries that Inductor compiles meanwhile go to the folder, all of them anew, closed to other users.

    The folder must be new: Inductor loads and unpickles what it finds there. Graphs are not pickled into it.
    """
    from torch._inductor import config

    apart = {"cpp_cache_precompile_headers": False, "fx_graph_cache": False}
    with _libraries_in(folder), config.patch(apart):
        torch_versions.clear_inductor_caches()
        yield


@contextlib.contextmanager
def _libraries_in(folder: Path) -> Iterator[None]:
    before, mask = os.environ.get(_FOLDER), os.umask(0o077)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ[_FOLDER] = str(folder)
    try:
        yield
    finally:
        os.umask(mask)
        if before is None:
            del os.environ[_FOLDER]
        else:
            os.environ[_FOLDER] = before


class NotPortable(Exception):
    """The program needs Inductor; the message says what for."""


@dataclass
class Portable:
    """A host program that needs torch alone: its text, and kernel -> library, relative to a folder."""

    text: str
    kernels: dict[str, str]

    @classmethod
    def of(cls, source: str, constants: dict[str, torch.Tensor], folder: Path) -> Portable:
        """From Inductor's text; the libraries are those that Inductor compiled into the folder."""
        with _libraries_in(folder):
            names = _run(source, constants, folder)
        kernels = {}
        for name, value in names.items():
            file = getattr(getattr(value, "__self__", None), "__file__", None)
            if isinstance(value, types.BuiltinFunctionType) and file is not None:
                with contextlib.suppress(ValueError):  # a library of somebody else's
                    kernels[name] = str(Path(file).relative_to(folder))
        tree = ast.parse(source)
        tree.body = [node for node in tree.body if not _only_compiles(node, kernels)]
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        if "async_compile" in used:
            raise NotPortable("a kernel of its graph is no library of its own")
        tree.body = [node for node in tree.body if not _idle_import(node, used)]
        return cls(ast.unparse(tree), kernels)

    def load(self, constants: dict[str, torch.Tensor], folder: Path) -> Callable[[list[Any]], Any]:
        """The function, with its libraries from the folder."""
        provided = {name: _kernel(folder / file) for name, file in self.kernels.items()}
        provided |= {"extern_kernels": _ExternKernels(), **constants}
        return _run(self.text, provided, folder)["call"]


def _run(source: str, names: dict[str, Any], folder: Path) -> dict[str, Any]:
    module = types.ModuleType("softnpu_cached_graph")
    module.__file__ = str(folder / "compiled_graph.py")
    vars(module).update(names)
    exec(compile(source, module.__file__, "exec"), vars(module))
    return vars(module)


def _only_compiles(node: ast.stmt, kernels: dict[str, str]) -> bool:
    """Whether a statement of Inductor's text does nothing for a program whose kernels are there."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        name = node.targets[0].id
        return name in kernels or name == "async_compile"
    if isinstance(node, ast.FunctionDef):
        return node.name in ("get_args", "benchmark_compiled_module")
    text = ast.unparse(node)
    return text.startswith(("async_compile.wait(", "del async_compile", "if __name__ =="))


def _idle_import(node: ast.stmt, used: set[str]) -> bool:
    """Whether a statement imports something of Inductor's that nobody uses, or that `load` provides."""
    if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("torch._inductor"):
        return False
    names = {alias.asname or alias.name for alias in node.names}
    return not names & (used - {"extern_kernels"})


class _ExternKernels:
    """Inductor's `extern_kernels`; those that are not plain functions of torch are fetched when they are called."""

    def __getattr__(self, name: str) -> Any:
        if name in _EXTERN:
            return _EXTERN[name]
        inductor = importlib.import_module("torch._inductor.select_algorithm")
        return getattr(inductor.extern_kernels, name)


def _kernel(path: Path) -> Any:
    """The kernel in a library that Inductor compiled with Python bindings."""
    os.environ[_DATA_PTR] = str(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)  # type: ignore[attr-defined]
    name = f"{path}.kernel"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no library of Python's")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name].kernel
