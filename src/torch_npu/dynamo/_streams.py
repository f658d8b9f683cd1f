"""Streams and events of torch.npu in traced code; what upstream's torch_npu.utils._dynamo teaches dynamo.

Dynamo traces `torch.Stream` itself: objects go into a table beside the graph, blocks are marks on the nodes inside,
waits and records are `streams::*` operators. Here it learns that the names of torch.npu mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch


def functions() -> list[Any]:
    """The names of torch.npu that `handlers` knows."""
    npu = torch.npu
    return [
        npu.Stream,
        npu.Event,
        npu.stream,
        npu.StreamContext,
        npu.current_stream,
        npu.default_stream,
        npu.set_stream,
        npu.synchronize,
    ]


def handlers(variables: ModuleType) -> dict[Any, Callable[..., Any]]:
    """What dynamo does at a call of each name; `variables` is torch._dynamo.variables."""
    streams = variables.streams
    build = variables.base.VariableTracker.build

    class NpuStreamVariable(streams.StreamVariable):  # type: ignore[name-defined]
        _cpython_type = torch.npu.Stream
        _device_handle_attr = "npu_stream"

        def python_type(self) -> type:
            return torch.npu.Stream

    class NpuEventVariable(streams.EventVariable):  # type: ignore[name-defined]
        def python_type(self) -> type:
            return torch.npu.Event

    def new(kind: type, variable: Callable[..., Any]) -> Callable[..., Any]:
        """A constructor: it runs now, for the trace, and again in each call before the graph."""

        def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
            given = [one.as_python_constant() for one in args]
            named = {name: one.as_python_constant() for name, one in kwargs.items()}
            value = kind(*given, **named)
            return _known(tx, value, variable, lambda: kind(*given, **named))

        return call

    def current(self: Any, tx: Any, device: Any = None) -> Any:
        index = _index(device)
        inside = tx.symbolic_stream_state.cur_stream()
        if inside.device.index == index:
            return NpuStreamVariable(
                inside.proxy, inside.value, inside.user_object_index, source=inside.source
            )
        return _known(
            tx,
            torch.npu.current_stream(index),
            NpuStreamVariable,
            lambda: torch.npu.current_stream(index),
        )

    def default(self: Any, tx: Any, device: Any = None) -> Any:
        index = _index(device)
        value = torch.npu.default_stream(index)
        return _known(tx, value, NpuStreamVariable, lambda: torch.npu.default_stream(index))

    def block(self: Any, tx: Any, stream: Any) -> Any:
        if _is_none(stream):
            return variables.ctx_manager.NullContextVariable()
        return streams.StreamContextVariable.create(tx, stream)

    def set_stream(self: Any, tx: Any, stream: Any) -> Any:
        stack = tx.symbolic_stream_state.cur_stream_stack
        if len(stack) > 1:
            _refuse("torch.npu.set_stream inside a block of torch.npu.stream")
        if not _is_none(stream):
            indices = stack[-1].user_object_index, stream.user_object_index
            tx.output.create_proxy("call_function", torch.ops.streams.fork, indices, {})
            stack[-1] = stream
        return build(tx, None)

    def synchronize(self: Any, tx: Any, device: Any = None) -> Any:
        target = "npu", _index(device)
        tx.output.create_proxy("call_function", torch.ops.streams.synchronize_device, target, {})
        return build(tx, None)

    made = [
        new(torch.npu.Stream, NpuStreamVariable),
        new(torch.npu.Event, NpuEventVariable),
        block,
        block,
        current,
        default,
        set_stream,
        synchronize,
    ]
    return dict(zip(functions(), made, strict=True))


def _known(tx: Any, value: Any, variable: Callable[..., Any], make: Callable[[], Any]) -> Any:
    """A variable for an object in dynamo's table, which each call of the compiled code makes anew."""
    from torch._dynamo import graph_bytecode_inputs as table
    from torch._dynamo.bytecode_transformation import create_call_function
    from torch._dynamo.utils import set_example_value

    def construct(index: int, codegen: Any) -> None:
        codegen.add_push_null(
            lambda: codegen.load_import_from(table.__name__, "stash_graph_created_object")
        )
        maker = tx.output.install_global_by_id("__make_npu_object", make)
        codegen.add_push_null(
            lambda: codegen.append_output(codegen.create_load_global(maker, add=True))
        )
        codegen.extend_output(create_call_function(0, False))
        codegen.extend_output(create_call_function(1, False))

    index = table.register_graph_created_object(value, construct)
    proxy = tx.output.create_proxy(
        "call_function", table.get_external_object_by_index, (index,), {}
    )
    set_example_value(proxy.node, value)
    return variable(proxy, value, index)


def _is_none(variable: Any) -> bool:
    return variable.is_python_constant() and variable.as_python_constant() is None


def _index(device: Any) -> int:
    given = None if device is None else device.as_python_constant()
    if given is None or given == -1:
        return torch.npu.current_device()
    index = given if isinstance(given, int) else torch.device(given).index
    return torch.npu.current_device() if index is None else index


def _refuse(what: str) -> None:
    from torch._dynamo.exc import unimplemented

    unimplemented(
        gb_type="Unsupported use of npu streams",
        context=what,
        explanation=f"{what} is not traced",
        hints=["Use one of the two"],
    )
