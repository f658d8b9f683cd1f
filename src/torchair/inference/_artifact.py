"""What cache_compile keeps of a function, how it is written and how it comes to life again.

Kept are the bytecode that dynamo wrote for the function (which takes the graph's inputs out of the arguments), and the
host code of its one graph. A process that finds them runs neither dynamo nor AOTAutograd nor Inductor nor the C++
compiler, and imports none of them.
"""

from __future__ import annotations

import importlib
import inspect
import io
import marshal
import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from torchair._capture import Captured, CaptureInputs
from torchair._host import operators
from torchair._host.run import HostProgram
from torchair._host.source import NotPortable, Portable, compiled_in
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.utils import logger
from torchair.inference import _binding, _store


class Stale(Exception):
    """The inputs are not those that the cached graph was compiled for."""


class Saver:
    """Compiles through the npu backend and writes down what comes of it."""

    def __init__(
        self,
        place: _store.Place,
        binding: dict[str, str],
        func: Callable[..., Any],
        config: CompilerConfig,
        decompositions: dict[Any, Any],
    ):
        self.place, self.binding, self.func, self.config = place, binding, func, config
        self.decompositions = decompositions
        self.count = 0
        self.reason: str | None = None
        self.record: dict[str, Any] = {}

    def backend(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        from torchair.compiler import aot_compile, compile_graph

        if self.count:
            self.reason = "it was traced more than once"
            self.place.forget()
            warnings.warn(
                f"cache_compile: {self.func.__qualname__} is no longer cached: {self.reason}",
                stacklevel=2,
            )
        outputs = next(iter(reversed(gm.graph.nodes))).args[0]
        placeholders = len(gm.graph.find_nodes(op="placeholder"))

        def compile_one(graph: Any, inputs: Sequence[Any], config: Any, **options: Any) -> Any:
            folder = self.place.new_libraries()
            with compiled_in(folder):
                run = compile_graph(graph, inputs, config, **options)
            results = next(iter(reversed(graph.graph.nodes))).args[0]
            same = len(inputs) == placeholders and len(results) == len(outputs)
            if not same:
                self.reason = "its graph and its arguments do not correspond one to one"
            self._keep(run, graph, inputs, folder)
            return run

        run = aot_compile(gm, example_inputs, self.config, self.decompositions, compile_one)
        self.count += 1  # not before: AOTAutograd may ask dynamo to start again
        return run

    def _keep(
        self, run: Any, graph: torch.fx.GraphModule, inputs: Sequence[Any], folder: Path
    ) -> None:
        program = getattr(run, "program", None)
        captured = program if isinstance(program, Captured) else None
        program = captured.program if captured is not None else program
        if not isinstance(program, HostProgram) or program.source is None:
            self.reason = "its graph runs operator by operator"
            return
        if any(_is_random(node.target) for node in graph.graph.nodes):
            self.reason = "its graph draws random numbers"
            return
        constants = io.BytesIO()
        torch.save((program.constants, [t.cpu() for t in program.held]), constants)
        try:
            portable = Portable.of(program.source, program.constants, folder)
        except NotPortable as wrong:
            self.reason = str(wrong)
            return
        self.record = {
            "source": program.source,
            "program": portable.text,
            "kernels": portable.kernels,
            "constants": constants.getvalue(),
            "operators": operators.originals(program.source),
            "device": program.device,
            "on_cpu": sorted(program.on_cpu),
            "written": program.written,
            "inputs": [_pattern(value) for value in inputs],
            "plan": captured.inputs.as_dict() if captured is not None else None,
        }

    def listening(self) -> AbstractContextManager[Any]:
        """While dynamo may trace: the bytecode that it writes for the function is kept."""
        return nullcontext() if self.count else _Listening(self)

    def save(self, caller: types.CodeType) -> None:
        if self.reason is not None or not self.record:
            self._give_up(self.reason)
            return
        names = [name for name in _names(caller) if name.startswith("__compiled_fn")]
        try:
            code = marshal.dumps(caller)
        except ValueError:
            self.reason = "its bytecode holds objects"
        if self.reason is not None or len(names) != 1:
            self._give_up(self.reason or "it makes several graphs")
            return
        meta = {
            "name": f"{self.func.__qualname__}{inspect.signature(self.func)}",
            "date": str(datetime.now(tz=timezone.utc)),
            **_binding.platform_of(),
        }
        self.place.keep(self.record | {"meta": meta, "binding": self.binding, "caller": code})
        logger.info("Cache %s saved to %s", meta, self.place.path)

    def _give_up(self, why: str | None) -> None:
        self.place.drop()
        warnings.warn(f"cache_compile: {self.func.__qualname__} is not cached: {why}", stacklevel=5)


class _Listening:
    def __init__(self, saver: Saver):
        self.saver = saver
        self.code: types.CodeType | None = None

    def __enter__(self) -> None:
        from torch._dynamo import convert_frame

        self.handle = convert_frame.register_bytecode_hook(self._hook)

    def _hook(self, code: types.CodeType, new_code: types.CodeType) -> types.CodeType | None:
        if code is self.saver.func.__code__:  # type: ignore[attr-defined]
            self.code = new_code
        return None

    def __exit__(self, kind: Any, *unused: Any) -> None:
        self.handle.remove()
        if kind is None and self.code is not None:
            self.saver.save(self.code)


def load(
    place: _store.Place, binding: dict[str, str], func: Any, config: CompilerConfig
) -> Callable[..., Any]:
    """The function that the file keeps. Raises FileNotFoundError or BadCache."""
    with place.reading() as (record, folder):
        _check_binding(record, binding)
        for kind, name in record["operators"]:
            operators.restore(kind, name)
        constants, held = torch.load(io.BytesIO(record["constants"]), weights_only=True)
        code = Portable(record["program"], record["kernels"]).load(constants, folder)
    device = record["device"]
    held = [tensor.to(f"npu:{device}") for tensor in held]
    program: Any = HostProgram(code, device, frozenset(record["on_cpu"]), held, record["written"])
    if record["plan"] is not None:
        program = Captured(program, CaptureInputs(**record["plan"]), config)
    patterns = record["inputs"]

    def graph(*inputs: Any) -> Any:
        for value, pattern in zip(inputs, patterns, strict=True):
            _check_input(value, pattern)
        return program(list(inputs))

    caller = marshal.loads(record["caller"])
    names = dict(func.__globals__)
    for name in _names(caller):
        if name.startswith("__compiled_fn"):
            names[name] = graph
        elif name.startswith("__import_"):
            module = name.removeprefix("__import_").replace("_dot_", ".")
            names[name] = _Module(module)
        elif name.startswith("__builtins_dict__"):
            names[name] = vars(importlib.import_module("builtins"))
    function = types.FunctionType(caller, names, closure=func.__closure__)
    owner = getattr(func, "__self__", None)
    return function if owner is None else types.MethodType(function, owner)


def _check_binding(record: dict[str, Any], binding: dict[str, str]) -> None:
    """Raises BadCache if the record was made elsewhere, by other versions or for another function."""
    for name, value in _binding.platform_of().items():
        if record["meta"].get(name) != value:
            raise _store.BadCache(f"it was made by {name} {record['meta'].get(name)}, not {value}")
    for name, value in binding.items():
        made = record["binding"].get(name)
        if made != value:
            named = f" ({made}, not {value})" if name == "function" else ""
            raise _store.BadCache(f"it was made for another {_PARTS[name]}{named}")


_PARTS = {
    "function": "function",
    "code": "code of the function, or of one that it calls",
    "values": "model, or for other values that the function reads",
    "options": "set of options",
}

#: functions of dynamo that its bytecode calls, without dynamo: what they note down is for graphs that it runs itself
_HELPERS: dict[str, Callable[..., Any]] = {
    "call_size": lambda tensor, dim: tensor.size(dim),
    "call_stride": lambda tensor, dim: tensor.stride(dim),
    "call_storage_offset": lambda tensor: tensor.storage_offset(),
    "get_current_stream": lambda device: None,
    "record_pregraph_bytecode_enter": lambda: None,
    "record_pregraph_bytecode_exit": lambda region: None,
    "store_user_object_weakrefs": lambda *objects: None,
}


class _Module:
    """A module that dynamo's bytecode names, imported when something of it is wanted."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if self._name.startswith("torch._dynamo.") and attribute in _HELPERS:
            return _HELPERS[attribute]
        return getattr(importlib.import_module(self._name), attribute)


def _names(code: types.CodeType) -> list[str]:
    found = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += _names(constant)
    return found


def _pattern(value: Any) -> Any:
    """What an input must be like: sizes that were symbols may vary, the rest may not."""
    if isinstance(value, torch.Tensor):
        sizes = tuple(None if isinstance(size, torch.SymInt) else size for size in value.shape)
        return str(value.dtype), sizes, str(value.device)
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return None
    return ("constant", repr(value))


def _check_input(value: Any, pattern: Any) -> None:
    if pattern is None:
        return
    if not isinstance(value, torch.Tensor):
        if pattern != ("constant", repr(value)):
            raise Stale(f"{value!r} where it had {pattern[-1]}")
        return
    dtype, sizes, device = pattern
    fits = len(sizes) == value.dim() and all(
        expected is None or expected == size
        for expected, size in zip(sizes, value.shape, strict=True)
    )
    if not fits or str(value.dtype) != dtype or str(value.device) != device:
        raise Stale(
            f"a tensor {tuple(value.shape)} {value.dtype} on {value.device} where it had {sizes} {dtype} on {device}"
        )


def _is_random(target: Any) -> bool:
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in target.tags
    )
