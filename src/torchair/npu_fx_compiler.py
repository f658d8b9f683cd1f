"""Upstream's torchair.npu_fx_compiler: the compiler under the names by which programs reach, wrap and replace its parts.

Every compilation goes through `_optimize_fx` and `_NpuFxCompiler._get_compiled_gm` of this module, so that a program
that replaces them (vllm-ascend does, and upstream's tests) sees each graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule, Interpreter

from torchair import _code, _passes, fx_summary
from torchair._code import CompiledFxArtifacts as _CompiledFxArtifacts
from torchair._code import CompiledFxGraph as _CompiledFxGraph
from torchair._observe import Observer
from torchair.compiler import NpuFxCompiler as _NpuFxCompiler
from torchair.compiler import get_compiler, get_npu_backend
from torchair.compiler import next_graph_id as _next_unique_graph_id
from torchair.compiler import npu_backend as _npu_backend
from torchair.configs.compiler_config import CompilerConfig
from torchair.configs.npugraphex_config import _process_kwargs_options
from torchair.core._concrete_graph import ConcreteGraphBase, ValuePack, _is_symlist
from torchair.core.utils import logger
from torchair.npugraph_ex import compile_fx

__all__ = [
    "CompilerConfig",
    "_CompiledFxArtifacts",
    "_CompiledFxGraph",
    "_NpuFxCompiler",
    "_next_unique_graph_id",
    "_npu_backend",
    "_process_kwargs_options",
    "compile_fx",
    "fx_summary",
    "get_compiler",
    "get_npu_backend",
    "logger",
]


def _optimize_fx(
    graph_module: GraphModule, config: CompilerConfig, observer: Observer
) -> GraphModule:
    """All passes over the ATen graph, in place; returns the graph."""
    _passes.optimize(graph_module, observer.example_inputs, config, observer)
    return graph_module


#: the steps as they are; with others in their place every graph is compiled anew
_STEPS = (
    _optimize_fx,
    _NpuFxCompiler._get_compiled_gm,
    _NpuFxCompiler.__call__,
    Observer.dump_gm,
)


def _view_to_reshape(
    graph_module: GraphModule, example_inputs: Sequence[Any] = (), config: Any = None
) -> None:
    _passes._view_to_reshape(graph_module, example_inputs, config)


def _compile_py_code(py_code: str) -> Any:
    """The module that code written by `_CompiledFxGraph.get_code` is; `kernel` in it runs the graph."""
    return _code.module_of(py_code)


def _unpack_meta_list(args: Any) -> list[Any]:
    return [one.meta if isinstance(one, ValuePack) else one for one in args]


def _unpack_meta(args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as shape inference takes them."""

    def part(arg: Any) -> Any:
        if isinstance(arg, (list, tuple)) and any(isinstance(one, ValuePack) for one in arg):
            return _unpack_meta_list(arg)
        if isinstance(arg, dict):
            return {key: part(value) for key, value in arg.items()}
        return arg.meta if isinstance(arg, ValuePack) else arg

    return [part(arg) for arg in args], {key: part(value) for key, value in kwargs.items()}


class _NpuGraphConverter(Interpreter):
    """Drives a ConcreteGraphBase over an FX graph: shape inference and construction side by side."""

    def __init__(self, *args: Any, graph: ConcreteGraphBase, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._graph = graph

    def run(self, *args: Any, **kwargs: Any) -> ConcreteGraphBase:
        """Builds the graph from these inputs and returns it."""
        with self._graph.context():
            super().run(*args, **kwargs)
        return self._graph

    def _unpack_npu(self, args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as the graph under construction takes them."""

        def part(arg: Any) -> Any:
            if _is_symlist(arg):
                return self._graph.parse_symlist(arg)
            if isinstance(arg, (list, tuple)):
                return [part(one) for one in arg]
            if isinstance(arg, dict):
                return {key: part(value) for key, value in arg.items()}
            return arg.npu if isinstance(arg, ValuePack) else arg

        return [part(arg) for arg in args], {key: part(value) for key, value in kwargs.items()}

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        meta = super().placeholder(target, args, kwargs)
        return self._pack(meta, self._graph.parse_input(target, args, kwargs, meta))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        plain, named = _unpack_meta(args, kwargs)
        meta = super().call_function(target, tuple(plain), named)
        npu = self._graph.parse_node(target, *self._unpack_npu(args, kwargs), meta)
        return self._pack(meta, npu)

    def output(self, target: Any, args: Any, kwargs: Any) -> Any:
        meta = super().output(target, tuple(_unpack_meta(args, kwargs)[0]), {})
        return self._graph.parse_output(target, args, kwargs, meta)

    def _pack(self, meta: Any, npu: Any) -> Any:
        if isinstance(npu, (tuple, list)):
            return [self._pack(m, n) for m, n in zip(meta, npu, strict=True)]
        return ValuePack(meta, npu)
