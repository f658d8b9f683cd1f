"""Streams and events in graphs of an older dynamo, as the newer one traces them (softnpu.torch_versions says since when).

The older one has the table of objects and some of the `streams::*` operators. What it lacks: the stream of the call has
no index of its own, and methods of streams are calls of a Python object, which AOTAutograd runs while it traces and does
not keep.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_npu._patch import Patches

_CURRENT = 0  # the index of the stream on which the graph is called, as the newer dynamo has it


def install(variables: ModuleType, patches: Patches) -> None:
    """`variables` is torch._dynamo.variables."""
    streams = variables.streams
    _operators(streams)
    _current_stream(streams, variables.builder, patches)
    _methods(streams, patches)
    _recorded_tensors(variables.tensor.TensorVariable, streams, patches)


def _operators(streams: ModuleType) -> None:
    """Those that are missing, and the shape function of one that takes another operator's arguments."""

    def synchronize_event(event_index: int) -> None:
        streams._get_event_by_index(event_index).synchronize()

    def synchronize_stream(stream_index: int) -> None:
        streams._get_stream_by_index(stream_index).synchronize()

    def synchronize_device(device_type: str, device_index: int) -> None:
        torch.accelerator.synchronize(torch.device(device_type, device_index))

    for function in (synchronize_event, synchronize_stream, synchronize_device):
        name = function.__name__
        if not hasattr(torch.ops.streams, name):
            function.__annotations__ = {
                key: {"int": int, "str": str, "None": None}[kind]
                for key, kind in function.__annotations__.items()
            }
            operator = torch.library.custom_op(f"streams::{name}", function, mutates_args=())
            operator.register_fake(lambda *_: None)
            torch.fx.node.has_side_effect(getattr(torch.ops.streams, name).default)
    torch.library.register_fake(
        "streams::record_stream", lambda tensor, stream_index: None, allow_override=True
    )
    torch.fx.node.has_side_effect(torch.ops.streams.record_stream.default)


def _current_stream(streams: ModuleType, builder: ModuleType, patches: Patches) -> None:
    """The stream of the call is the first object of each trace."""
    table = streams.torch._dynamo.graph_bytecode_inputs
    state = streams.SymbolicStreamState
    start, register = state.__init__, builder.register_user_object

    def __init__(self: Any) -> None:
        start(self)
        if self.cur_stream_stack:
            table.reset_user_object_tracking()
            stream = torch.accelerator.current_stream()
            table.register_graph_created_object(
                stream, lambda _, codegen: streams._codegen_current_stream(stream.device, codegen)
            )
            self.cur_stream_stack[0].user_object_index = _CURRENT

    def register_user_object(value: Any, source: Any) -> int:
        if isinstance(source, streams.CurrentStreamSource):
            return _CURRENT
        return register(value, source)

    patches.replace(state, "__init__", __init__)
    patches.replace(builder, "register_user_object", register_user_object)


def _methods(streams: ModuleType, patches: Patches) -> None:
    """Methods that wait and record become operators."""
    of_stream, of_event = streams.StreamVariable.call_method, streams.EventVariable.call_method
    none = streams.ConstantVariable.create

    def call(tx: Any, name: str, *indices: int) -> Any:
        tx.output.create_proxy("call_function", getattr(torch.ops.streams, name), indices, {})
        return none(None)

    def stream_method(self: Any, tx: Any, name: str, args: list[Any], kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        if name == "wait_event":
            return call(tx, name, given[0].user_object_index, self.user_object_index)
        if name == "wait_stream":
            return call(tx, name, self.user_object_index, given[0].user_object_index)
        if name == "synchronize":
            return call(tx, "synchronize_stream", self.user_object_index)
        if name == "record_event":
            event = given[0] if given else _new_event(streams, tx, self.value)
            call(tx, name, event.user_object_index, self.user_object_index)
            return event
        return of_stream(self, tx, name, args, kwargs)

    def event_method(self: Any, tx: Any, name: str, args: list[Any], kwargs: Any) -> Any:
        if name == "synchronize":
            return call(tx, "synchronize_event", self.user_object_index)
        return of_event(self, tx, name, args, kwargs)

    patches.replace(streams.StreamVariable, "call_method", stream_method)
    patches.replace(streams.EventVariable, "call_method", event_method)


def _new_event(streams: ModuleType, tx: Any, stream: Any) -> Any:
    """What `record_event` without an event gives: each call of the compiled code makes it anew."""
    from torch_npu.dynamo import _streams

    make: Callable[[], Any] = type(stream.record_event())
    return _streams._known(tx, make(), streams.EventVariable, make)


def _recorded_tensors(tensor: Any, streams: ModuleType, patches: Patches) -> None:
    def method_record_stream(self: Any, tx: Any, stream: Any) -> Any:
        given = self.as_proxy(), stream.user_object_index
        tx.output.create_proxy("call_function", torch.ops.streams.record_stream, given, {})
        return streams.ConstantVariable.create(None)

    patches.replace(tensor, "method_record_stream", method_record_stream)
