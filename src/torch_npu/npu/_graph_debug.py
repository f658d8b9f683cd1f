"""Looking into a graph: its steps as a timeline, tensors printed and saved in every replay; super kernels."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from datetime import datetime
from typing import Any

import torch
from torch.fx.node import has_side_effect

from softnpu import _C
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu import streams

_library = torch.library.Library("npu", "FRAGMENT")
_saved_counts: dict[str, itertools.count[int]] = defaultdict(itertools.count)
_scopes: list[str | None] = []


def _at_this_place(tensors: list[torch.Tensor], then: Any) -> None:
    """Calls `then` with host copies of the tensors' values when the stream gets here, in every replay."""
    if tensors[0].device.type != "npu":
        return then(tensors)
    kept = [_C.pool_ref_tensor(tensor) for tensor in tensors]
    stream = streams.current_stream(tensors[0].device)
    _C.host_function(
        stream.device_index,
        stream.stream_id,
        lambda: then([_C.host_view(tensor).clone() for tensor in kept]),
    )


def _print(input: Any, *, tensor_name: str | None = None) -> None:
    def show(values: list[torch.Tensor]) -> None:
        value = values[0]
        name = "" if tensor_name is None else f"{tensor_name}="
        print(f"{name}{value}, shape={tuple(value.shape)}, dtype={value.dtype}", flush=True)

    _at_this_place([input], show)


def _save_path(save_path: str | None, device: torch.device, overwrite: bool) -> str:
    if save_path is None:
        save_path = f"tensor_{datetime.now().strftime('%Y%m%d_%H%M%S_%f')}.pt"
    directory, name = os.path.split(save_path)
    stem, suffix = os.path.splitext(name)
    if not stem:
        raise ValueError("save_npugraph_tensor: save_path must include a file name")
    if device.type == "npu":
        stem = f"{stem}_device_{device.index}"
    path = os.path.join(directory, stem)
    suffix = suffix or ".pt"
    return path + suffix if overwrite else f"{path}_{next(_saved_counts[path + suffix])}{suffix}"


def _save(input: Any, *, save_path: str | None = None, overwrite: bool = False) -> None:
    path = _save_path(save_path, input.device, overwrite)
    _at_this_place([input], lambda values: torch.save(values[0], path))


def _save_list(input: Any, *, save_path: str | None = None, overwrite: bool = False) -> None:
    if not input or any(tensor.device != input[0].device for tensor in input):
        raise ValueError("save_npugraph_tensor: input must be tensors of one device, at least one")
    path = _save_path(save_path, input[0].device, overwrite)
    _at_this_place(list(input), lambda values: torch.save(values, path))


def _scope_name(scope_name: str | None) -> str | None:
    if scope_name is not None and not scope_name.strip():
        raise RuntimeError(
            "scope_name should be None or a non-empty string." + pta_error(ErrCode.PARAM)
        )
    return scope_name


def _scope_begin(scope_name: str | None = None) -> None:
    _scopes.append(_scope_name(scope_name))


def _scope_end(scope_name: str | None = None) -> None:
    name = _scope_name(scope_name)
    if not _scopes:
        raise RuntimeError("super_kernel_scope_end: no scope is open" + pta_error(ErrCode.PARAM))
    opened = _scopes.pop()
    if name is not None and name != opened:
        raise RuntimeError(
            f"super_kernel_scope_end: the open scope is {opened!r}, not {name!r}"
            + pta_error(ErrCode.PARAM)
        )


def _define(schema: str, implementation: Any, keys: tuple[str, ...]) -> None:
    name = schema.split("(", 1)[0]
    _library.define(schema)
    for key in keys:
        _library.impl(name, implementation, key)
    torch.library.register_fake(f"npu::{name}", lambda *args, **kwargs: None, lib=_library)
    base, _, overload = name.partition(".")
    has_side_effect(getattr(getattr(torch.ops.npu, base), overload or "default"))


_TENSORS = ("PrivateUse1", "CPU")
_define("print_npugraph_tensor(Tensor input, *, str? tensor_name=None) -> ()", _print, _TENSORS)
_define(
    "save_npugraph_tensor(Tensor input, *, str? save_path=None, bool overwrite=False) -> ()",
    _save,
    _TENSORS,
)
_define(
    "save_npugraph_tensor.tensor_list(Tensor[] input, *, str? save_path=None, bool overwrite=False) -> ()",
    _save_list,
    _TENSORS,
)
_define(
    "super_kernel_scope_begin(str? scope_name=None) -> ()",
    _scope_begin,
    ("CompositeExplicitAutograd",),
)
_define(
    "super_kernel_scope_end(str? scope_name=None) -> ()", _scope_end, ("CompositeExplicitAutograd",)
)


def super_kernel_scope_begin(scope_name: str | None = None) -> None:
    """Opens a scope whose operators the card may fuse into one kernel; here it only nests and names."""
    torch.ops.npu.super_kernel_scope_begin(scope_name)


def super_kernel_scope_end(scope_name: str | None = None) -> None:
    """Closes the scope."""
    torch.ops.npu.super_kernel_scope_end(scope_name)


def print_npugraph_tensor(input: torch.Tensor, *, tensor_name: str | None = None) -> None:
    """Prints a tensor when its stream gets here: at once, or in every replay of the graph that captures it."""
    torch.ops.npu.print_npugraph_tensor(input, tensor_name=tensor_name)


def save_npugraph_tensor(
    input: Any, *, save_path: str | None = None, overwrite: bool = False
) -> None:
    """Saves a tensor, or a list of them, when its stream gets here; see `print_npugraph_tensor`."""
    save = torch.ops.npu.save_npugraph_tensor
    chosen = save.default if isinstance(input, torch.Tensor) else save.tensor_list
    chosen(input, save_path=save_path, overwrite=overwrite)


def timeline(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps of a graph as events of a trace viewer: one unit of time each, a row a stream."""
    return [
        {
            "name": step.get("name", step["type"]),
            "ph": "X",
            "ts": at,
            "dur": 1,
            "pid": 0,
            "tid": step["stream"],
            "args": {"kernels": step.get("kernels", [])},
        }
        for at, step in enumerate(steps)
    ]


_SUPER_KERNEL_OPTIONS: dict[str, dict[str, type]] = {
    "optimize_options": {
        "preload_code": int,
        "split_mode": int,
        "stream_fusion": int,
        "constant_codegen": int,
        "auto_op_parallel": int,
        "opt_extend": str,
        "dcci_before_kernel_start": list,
        "dcci_after_kernel_end": list,
        "dcci_disable_on_kernel": list,
        "aggressive_opt_strategies": dict,
        "ubuf_lock_ignore_kernel": list,
        "early_start": int,
    },
    "debug_options": {
        "debug_sync_all": int,
        "debug_op_exec_trace": int,
        "debug_cross_core_sync_check": int,
        "debug_extend": str,
        "debug_per_op_max_core_num": int,
    },
}


_BYPASSES = ("event_breaker_bypass", "value_breaker_bypass", "task_breaker_bypass")


def _check_parts(kind: str, key: str, value: Any) -> None:
    """Lists hold names; the strategies are whole numbers under known keys."""
    if isinstance(value, list):
        wrong = [item for item in value if not isinstance(item, str)]
        expected = "a list of str"
    elif isinstance(value, dict):
        wrong = [k for k, v in value.items() if k not in _BYPASSES or not isinstance(v, int)]
        expected = f"a dict of int with the keys {', '.join(_BYPASSES)}"
    else:
        return
    if wrong:
        raise RuntimeError(
            f"{kind}[{key!r}] must be {expected}, but received {wrong[0]!r}"
            + pta_error(ErrCode.PARAM)
        )


def check_super_kernel_options(kind: str, options: Any) -> None:
    """The keys and types that `NPUGraph.super_kernel_optimize` takes."""
    if options is None:
        return
    if not isinstance(options, dict):
        raise RuntimeError(f"{kind} must be a dict or None" + pta_error(ErrCode.PARAM))
    allowed = _SUPER_KERNEL_OPTIONS[kind]
    for key, value in options.items():
        if key not in allowed:
            raise RuntimeError(
                f"{kind}: unknown key {key!r}; allowed are {', '.join(allowed)}"
                + pta_error(ErrCode.PARAM)
            )
        if not isinstance(value, allowed[key]):
            raise RuntimeError(
                f"{kind}[{key!r}] must be {allowed[key].__name__}, but received "
                f"{type(value).__name__}" + pta_error(ErrCode.PARAM)
            )
        _check_parts(kind, key, value)
