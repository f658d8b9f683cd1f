"""New arguments for operators of a captured graph: what `NPUGraph.update` does, and its public handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from softnpu import _C
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu import streams

_handlers: dict[str, type[NpuGraphOpHandler]] = {}


class NpuGraphOpHandler:
    """How an operator is captured so that its arguments can be updated; override what differs.

    `UPDATE_SPECS` maps an operator's name to `("arg", index, key)` or `("kwarg", name, key)` entries; an operator
    without an entry is updated by its schema's argument names.
    """

    UPDATE_SPECS: dict[str, list[tuple[str, Any, str]]] = {}

    @classmethod
    def prepare_capture(cls, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """What to call in the capture instead."""
        return func, args, kwargs

    @classmethod
    def postprocess_result(cls, result: Any, kwargs: Any) -> Any:
        """What the caller gets."""
        return result

    @classmethod
    def get_update_specs(cls, op_name: str) -> list[tuple[str, Any, str]]:
        """Where each key of an update goes."""
        return cls.UPDATE_SPECS.get(op_name, [])

    @classmethod
    def update_args(cls, dispatch_record: Any, update_input: dict[str, Any]) -> None:
        """Puts the new values into the recorded call."""
        for kind, where, key in cls.get_update_specs(dispatch_record.op_cache_entry.__name__):
            if key not in update_input:
                continue
            if kind == "arg" and len(dispatch_record.args) > where:
                dispatch_record.args[where] = update_input[key]
            elif kind == "kwarg":
                dispatch_record.kwargs[where] = update_input[key]

    @classmethod
    def record_wrap_kwarg(cls, key: str, value: Any, tensor_param_names: list[str]) -> Any:
        """How a keyword argument is remembered: tensors without keeping their memory, others copied."""
        return _remembered(value)


def register_npu_graph_handler(op_names: Any) -> Callable[[type], type]:
    """Class decorator: the handler of the named operators ("name", "name.overload")."""
    names = [op_names] if isinstance(op_names, str) else op_names
    names = list(names) if isinstance(names, Iterable) else [names]
    if not all(isinstance(name, str) for name in names):
        raise TypeError(
            "register_npu_graph_handler: argument 'op_names' must be a name or a list of names, "
            f"but received {op_names!r}"
        )

    def register(handler: type) -> type:
        if not (isinstance(handler, type) and issubclass(handler, NpuGraphOpHandler)):
            raise TypeError(
                f"a graph handler must be a subclass of NpuGraphOpHandler, got {handler!r}"
            )
        for name in names:
            _handlers[name] = handler
        return handler

    return register


def _both(name: str) -> list[str]:
    return [name, f"{name}.default", f"{name}.out"]


@register_npu_graph_handler(
    [
        *_both("npu_fused_infer_attention_score"),
        *_both("npu_fused_infer_attention_score_v2"),
        "_npu_paged_attention.default",
        "npu_multi_head_latent_attention.out",
    ]
)
class _AttentionHandler(NpuGraphOpHandler):
    """Attention with lengths on the host: any argument can be updated by its name."""

    @classmethod
    def update_args(cls, dispatch_record: Any, update_input: dict[str, Any]) -> None:
        names = [argument.name for argument in dispatch_record.op_cache_entry._schema.arguments]
        for key, value in update_input.items():
            if key in names and names.index(key) < len(dispatch_record.args):
                dispatch_record.args[names.index(key)] = value


def _remembered(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _C.pool_ref_tensor(value) if value.device.type == "npu" else value
    if isinstance(value, (list, tuple)):
        return type(value)(_remembered(item) for item in value)
    return deepcopy(value)


@dataclass
class _Record:
    """One captured call that can be updated."""

    event: Any
    handle: Any
    args: list[Any]
    kwargs: dict[str, Any]
    op_cache_entry: Any


class GraphDispatchMode(TorchDispatchMode):
    """During a capture: puts each operator that has a handler into a task group behind an external event."""

    update_stream: Any = None

    def __init__(self) -> None:
        super().__init__()
        if GraphDispatchMode.update_stream is None:
            GraphDispatchMode.update_stream = streams.Stream()
        self.graph_dispatch_records: list[_Record] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        handler = _handlers.get(func.__name__)
        if handler is None:
            return func(*args, **kwargs)
        func, args, kwargs = handler.prepare_capture(func, args, kwargs)
        stream = streams.current_stream()
        place = (stream.device_index, stream.stream_id)
        event = streams.ExternalEvent()
        event.wait(stream)
        event.reset(stream)
        _C.task_group_begin(*place)
        result = func(*args, **kwargs)
        handle = _C.task_group_end(*place)
        names = [a.name for a in func._schema.arguments if "Tensor" in str(a.type)]
        remembered = {k: handler.record_wrap_kwarg(k, v, names) for k, v in kwargs.items()}
        self.graph_dispatch_records.append(
            _Record(event, handle, [_remembered(a) for a in args], remembered, func)
        )
        return handler.postprocess_result(result, kwargs)

    def update_capture_record(self, cpu_update_input: list[dict[str, Any]]) -> None:
        """Updates every recorded call and lets the graph pass it."""
        records = self.graph_dispatch_records
        if not isinstance(cpu_update_input, (list, tuple)) or not all(
            isinstance(item, dict) for item in cpu_update_input
        ):
            raise TypeError(
                f"cpu_update_input must be a list of dicts, but received {cpu_update_input!r}"
                + pta_error(ErrCode.TYPE)
            )
        inputs = list(cpu_update_input) * (len(records) if len(cpu_update_input) == 1 else 1)
        if len(inputs) != len(records):
            raise RuntimeError(
                f"cpu_update_input must hold one dict, or one for each of the {len(records)} captured "
                f"operators, but received {len(inputs)}" + pta_error(ErrCode.PARAM)
            )
        stream = self.update_stream
        place = (stream.device_index, stream.stream_id)
        with streams.stream(stream):
            for record, new in zip(records, inputs, strict=True):
                record.kwargs.update({k: v for k, v in new.items() if k in record.kwargs})
                _handlers[record.op_cache_entry.__name__].update_args(record, new)
                _C.task_update_begin(*place, record.handle)
                record.op_cache_entry(*record.args, **record.kwargs)
                _C.task_update_end(*place)
                record.event.record(stream)
