"""Reference kernels for operators of the program's own: those whose kernels exist only for the card.

    from softnpu import kernels

    @kernels.register("_C_ascend::rotary_embedding", meta=lambda x, cos, sin: torch.empty_like(x))
    def rotary_embedding(x, cos, sin): ...

`register` supplies the npu kernel of a schema that the program defines, before or after it does; with `schema=` it
defines the operator too. `register_library` stands in for a whole shared library that exists only for the card: where
a program asks `torch.ops.load_library` for a file of this name that does not exist, a function defines its operators.
Modules named by entry points of the group `softnpu.kernels`, and the Python files in the folder SOFTNPU_KERNELS, are
imported with torch_npu. See docs/custom_kernels.md.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softnpu import ownership, settings

__all__ = [
    "Kernel",
    "load",
    "load_library",
    "register",
    "register_library",
    "registered",
    "registered_libraries",
    "unregister",
    "unregister_library",
]

GROUP = "softnpu.kernels"


@dataclass
class Kernel:
    """A registered reference."""

    name: str
    function: Callable[..., Any]
    meta: Callable[..., Any] | None
    schema: str | None
    libraries: list[Any] = field(default_factory=list, repr=False)


_kernels: dict[str, Kernel] = {}


def register(
    name: str,
    function: Callable[..., Any] | None = None,
    *,
    meta: Callable[..., Any] | None = None,
    schema: str | None = None,
) -> Any:
    """Makes `function` the npu kernel of the operator; without it, returns a decorator.

    Args:
        name: "library::operator", or "library::operator.overload".
        function: takes the operator's arguments, npu tensors among them, and returns its results. It writes the
            arguments that the schema says are written. What it calls is launched on the current stream.
        meta: the shapes of the results, for FakeTensor and torch.compile: takes the same arguments as meta tensors
            and returns empty ones. By default the program's own, or `function` itself if the program has none.
        schema: "(Tensor x, int n) -> Tensor": defines the operator, for a library that cannot be loaded here.
    """
    _check_name(name)
    name = name.removesuffix(".default")
    for label, given in (("function", function), ("meta", meta)):
        if given is not None and not callable(given):
            raise TypeError(f"register: {label} must be callable, received {type(given).__name__}")
    if schema is not None and not isinstance(schema, str):
        raise TypeError(f"register: schema must be a str, received {type(schema).__name__}")
    if function is None:
        return lambda decorated: register(name, decorated, meta=meta, schema=schema)
    unregister(name)
    kernel = Kernel(name, function, meta, schema)
    _attach(kernel)
    _kernels[name] = kernel
    return function


def unregister(name: str) -> bool:
    """Takes a reference away, and an operator that its `schema` defined; whether there was one."""
    kernel = _kernels.pop(name.removesuffix(".default"), None)
    if kernel is None:
        return False
    for library in kernel.libraries:
        library._destroy()
    return True


def registered() -> dict[str, Kernel]:
    """The references by the names of their operators."""
    return dict(_kernels)


# --- shared libraries -----------------------------------------------------------------------------------

_libraries: dict[str, Callable[[], None]] = {}
_loaded: set[str] = set()


def register_library(name: str, define: Callable[[], None]) -> None:
    """Makes `define` what loading the shared library does, where a program's file of this name does not exist.

    Args:
        name: the name of the file without a folder, "libmine.so".
        define: called once, when the program first asks for the library.
    """
    if not isinstance(name, str):
        raise TypeError(f"register_library: name must be a str, received {type(name).__name__}")
    if not name or Path(name).name != name:
        raise ValueError(f"register_library: name must be that of a file alone, received {name!r}")
    if not callable(define):
        raise TypeError(
            f"register_library: define must be callable, received {type(define).__name__}"
        )
    _libraries[name] = define
    _loaded.discard(name)


def unregister_library(name: str) -> bool:
    """Takes a library away, not the operators that it has defined; whether there was one."""
    _loaded.discard(name)
    return _libraries.pop(name, None) is not None


def registered_libraries() -> dict[str, Callable[[], None]]:
    """The functions by the names of their libraries."""
    return dict(_libraries)


def load_library(path: str | os.PathLike[str]) -> bool:
    """Defines the operators of the library, if one is registered and there is no such file; whether it did."""
    name = Path(path).name
    if name not in _libraries or Path(path).exists():
        return False
    if name not in _loaded:
        _libraries[name]()
        _loaded.add(name)
    return True


# --- at the import of torch_npu -------------------------------------------------------------------------


def load() -> None:
    """Imports what entry points and SOFTNPU_KERNELS name; torch_npu calls it once, when the device is known."""
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            found = point.load()
        except Exception as error:
            raise RuntimeError(
                f"the entry point {point.name} = {point.value} of {GROUP} failed: {error}"
            ) from error
        if callable(found):
            found()
    folder = settings.current().kernels
    if not folder or folder == "0":
        return
    for path in (Path(folder), *sorted(Path(folder).glob("*.py"))):
        if ownership.open_to_all(path):
            raise RuntimeError(
                f"SOFTNPU_KERNELS: {path} may be written by everybody, so it is not run"
            )
        if path != Path(folder):
            _import(path)


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs the source, and no bytecode that lies beside it."""

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import(path: Path) -> None:
    name = f"softnpu_kernels_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise RuntimeError(f"{path} of SOFTNPU_KERNELS failed: {error}") from error


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"register: name must be a str, received {type(name).__name__}")
    library, separator, operator = name.partition("::")
    if not (library and separator and operator and "::" not in operator):
        raise ValueError(f'register: name must be "library::operator", received {name!r}')
    if library in ("aten", "npu", "prim"):
        raise ValueError(
            f"register: {name}: the library {library!r} is not the program's own; its kernels are torch_npu's"
        )


def _attach(kernel: Kernel) -> None:
    import torch

    library, _, operator = kernel.name.partition("::")
    if kernel.schema is not None:
        if _defined(kernel.name):
            raise ValueError(
                f"register: {kernel.name} is defined already, as {_schema(kernel.name)}; leave schema out"
            )
        defining = torch.library.Library(library, "FRAGMENT")
        defining.define(f"{operator}{kernel.schema.strip()}")
        kernel.libraries.append(defining)
    implementing = torch.library.Library(library, "IMPL")
    kernel.libraries.insert(0, implementing)
    implementing.impl(operator, kernel.function, "PrivateUse1", allow_override=True)
    shapes = kernel.meta
    if shapes is None and _defined(kernel.name) and not _has_meta(kernel.name):
        shapes = kernel.function
    if shapes is not None:
        implementing.impl(operator, shapes, "Meta", allow_override=True)


def _defined(name: str) -> bool:
    return _schema(name) is not None


def _schema(name: str) -> Any:
    import torch

    plain, _, overload = name.partition(".")
    try:
        return torch._C._get_schema(plain, overload)
    except RuntimeError:  # there is none of this name
        return None


def _has_meta(name: str) -> bool:
    import torch
    from torch._library.simple_registry import singleton

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return any(has(name, key) for key in keys) or singleton.find(name).fake_impl.kernel is not None
