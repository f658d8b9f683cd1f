"""What a cache was made for, in parts that can be compared: the function, its code, the values it reads, the options.

Dynamo computes with Python's values while it traces and leaves the results in the graph. So a graph is that of its
function only as long as the code that was traced (also of functions that it calls) and the plain values that this code
names (closures, globals, defaults, attributes of the model) are the same.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from softnpu import __version__, settings
from torchair.configs.compiler_config import CompilerConfig

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range)
_TORCH_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
#: packages whose code is bound by their versions
_VERSIONED = {"torch", "torch_npu", "torchair", "softnpu", *sys.stdlib_module_names} - {"__main__"}
_MAX_FUNCTIONS = 5000
_DEPTH = 4


def of(func: Any, config: CompilerConfig, decompositions: dict[Any, Any]) -> dict[str, str]:
    """The parts of the binding, by name; digests, except for the function's name."""
    traced = _Traced()
    traced.visit(func)
    owner = getattr(func, "__self__", None)
    if owner is not None:
        for kind in sorted(
            _kinds(owner), key=lambda kind: f"{kind.__module__}.{kind.__qualname__}"
        ):
            traced.visit(kind)
    return {
        "function": f"{func.__module__}.{func.__qualname__}",
        "code": _digest(traced.codes),
        "values": _digest([*traced.values(), *_model(owner, traced.names)]),
        "options": _digest([*_options(config), *_decompositions(decompositions)]),
    }


def platform_of() -> dict[str, str]:
    """What compiled code runs on: versions, the chip, the CPU with its instructions."""
    return {
        "version": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "chip": settings.current().soc,
        "cpu": _cpu(),
    }


def key(binding: dict[str, str]) -> str:
    return _digest(f"{name}={value}" for name, value in sorted(binding.items()))[:32]


def _digest(parts: Any) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _cpu() -> str:
    """The CPU's model and a digest of its flags: Inductor compiles for the very CPU that it runs on."""
    name, flags = platform.processor() or "unknown", ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                field, _, value = line.partition(":")
                if field.strip() in ("model name", "CPU part"):
                    name = value.strip()
                elif field.strip() in ("flags", "Features"):
                    flags = value.strip()
                if not line.strip():
                    break  # the other cores are alike
    except OSError:
        pass  # not Linux: the capability alone
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {name} {capability} {_digest([flags])[:12]}"


class _Traced:
    """Python code that a trace of some function may run into, outside of packages that versions bind."""

    def __init__(self) -> None:
        self.codes: list[str] = []
        self.names: set[str] = set()
        self._functions: list[types.FunctionType] = []
        self._seen: set[int] = set()

    def visit(self, value: Any) -> None:
        waiting = [value]
        while waiting and len(self._functions) < _MAX_FUNCTIONS:
            one = waiting.pop()
            if isinstance(one, types.MethodType):
                one = one.__func__
            if id(one) in self._seen or _versioned(one):
                continue
            self._seen.add(id(one))
            if isinstance(one, types.FunctionType):
                waiting += reversed(list(self._function(one)))
            elif isinstance(one, type):
                waiting += reversed(list(_functions_of(one)))

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        """Notes the function down; the functions and classes that it names."""
        self._functions.append(function)
        self.codes.append(f"{function.__qualname__}:{_code(function.__code__)}")
        names = set(_names(function.__code__))
        if function.__name__ != "__init__":  # which runs before the trace
            self.names |= names
        for name in sorted(names):
            found = function.__globals__.get(name)
            if isinstance(found, types.ModuleType):
                yield from (vars(found).get(n) for n in sorted(names) if not _versioned(found))
            else:
                yield found
        for cell in function.__closure__ or ():
            yield _content(cell)

    def values(self) -> Iterator[str]:
        """The plain values that the functions read outside of their arguments."""
        for function in self._functions:
            for name, cell in zip(
                function.__code__.co_freevars, function.__closure__ or (), strict=True
            ):
                yield f"{name}={describe(_content(cell), self.names)}"
            yield describe(function.__defaults__, self.names)
            yield describe(function.__kwdefaults__, self.names)
            for name in sorted(set(_names(function.__code__))):
                if name in function.__globals__:
                    yield f"{name}={describe(function.__globals__[name], self.names)}"


def describe(value: Any, names: set[str], depth: int = _DEPTH) -> str:
    """A text that differs if a plain value in it does; objects are described by those attributes that code names."""
    if isinstance(value, (*_PLAIN, *_TORCH_PLAIN)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, torch.Tensor):
        return f"tensor {value.dtype} {tuple(value.shape)}"
    if isinstance(value, types.FunctionType):
        return f"{value.__qualname__}:{_code(value.__code__)}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not depth or isinstance(value, (type, types.ModuleType)):
        return kind
    if isinstance(value, (list, tuple)):
        return f"{kind} [{', '.join(describe(v, names, depth - 1) for v in value)}]"
    if isinstance(value, (set, frozenset)):
        return f"{kind} {sorted(describe(v, names, depth - 1) for v in value)}"
    if isinstance(value, dict):
        pairs = (
            f"{describe(k, names, depth - 1)}: {describe(v, names, depth - 1)}"
            for k, v in value.items()
        )
        return f"{kind} {{{', '.join(pairs)}}}"
    if isinstance(value, torch.nn.Module):
        return f"{kind} {_repr(value)}"
    if _versioned(type(value)):
        return kind
    return f"{kind} {_attributes(value, names, depth - 1)}"


def _attributes(value: Any, names: set[str], depth: int) -> str:
    own = getattr(value, "__dict__", {})
    found = (f"{k}={describe(own[k], names, depth)}" for k in sorted(map(str, own)) if k in names)
    return f"({', '.join(found)})"


def _model(owner: Any, names: set[str]) -> Iterator[str]:
    if isinstance(owner, torch.nn.Module):
        yield _repr(owner)
        for name, module in owner.named_modules():
            own = "" if _versioned(type(module)) else _attributes(module, names, _DEPTH)
            yield f"{name} {type(module).__qualname__} {module.training} {own}"
    elif owner is not None:
        yield describe(owner, names)


def _repr(module: torch.nn.Module) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", str(module))


def _options(config: CompilerConfig) -> Iterator[str]:
    for name, value in sorted(config.changed().items()):
        yield f"{name}={describe(value, set())}"


def _decompositions(decompositions: dict[Any, Any]) -> Iterator[str]:
    for operator, function in decompositions.items():
        yield f"{operator}={describe(function, set())}"


def _kinds(owner: Any) -> set[type]:
    modules = owner.modules() if isinstance(owner, torch.nn.Module) else [owner]
    return {kind for module in modules for kind in type(module).__mro__ if not _versioned(kind)}


def _functions_of(kind: type) -> Iterator[Any]:
    for _, member in sorted(vars(kind).items()):
        if isinstance(member, (staticmethod, classmethod)):
            yield member.__func__
        elif isinstance(member, property):
            yield member.fget
        elif isinstance(member, types.FunctionType):
            yield member


def _versioned(value: Any) -> bool:
    module = (
        value.__name__
        if isinstance(value, types.ModuleType)
        else getattr(value, "__module__", None)
    )
    return str(module or "").partition(".")[0] in _VERSIONED


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _code(code: types.CodeType) -> str:
    """The bytecode and its constants, without the file and the lines where it stands."""
    constants = [
        _code(value) if isinstance(value, types.CodeType) else describe(value, set())
        for value in code.co_consts
    ]
    parts = [
        code.co_code.hex(),
        repr(code.co_names),
        repr(code.co_varnames),
        repr(code.co_freevars),
    ]
    return _digest([*parts, *constants])
