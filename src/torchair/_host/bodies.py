"""What the host operators of operators do when host code calls them: see `operators`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.node import _side_effectful_functions
from torch.utils import _pytree as pytree

from softnpu import _C

_lock = threading.Lock()


class _Running(threading.local):
    """The device whose graph this thread runs, and whether it runs only to be captured."""

    device = 0
    capturing = False


running = _Running()


def widened(overload: OpOverload) -> Callable[..., Any]:
    """The operator on fp32 copies of half-precision tensors, rounded once."""

    def product(*args: Any, **kwargs: Any) -> Any:
        half = next(v.dtype for v in args if isinstance(v, torch.Tensor))

        def wide(value: Any) -> Any:
            is_half = isinstance(value, torch.Tensor) and value.dtype == half
            return value.float() if is_half else value

        def narrow(value: Any) -> Any:
            is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float32
            return value.to(half) if is_wide else value

        result = overload(*map(wide, args), **{name: wide(v) for name, v in kwargs.items()})
        if not isinstance(result, tuple):
            return narrow(result)
        if overload is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            return narrow(result[0]), result[1]  # the sums of exponentials stay fp32
        return tuple(map(narrow, result))

    return product


def seeded(overload: OpOverload) -> Callable[..., Any]:
    """The random operator with a generator that continues the device's."""

    if any(argument.name == "generator" for argument in overload._schema.arguments):

        def with_generator(*args: Any, **kwargs: Any) -> Any:
            position = [a.name for a in overload._schema.arguments].index("generator")
            if len(args) > position:
                args = (*args[:position], _C.kernel_generator(), *args[position + 1 :])
                return overload(*args, **kwargs)
            return overload(*args, **kwargs | {"generator": _C.kernel_generator()})

        return with_generator
    packet = overload.overloadpacket
    suffix = {"default": "generator"}.get(
        overload._overloadname, f"generator_with_{overload._overloadname}"
    )
    for candidate in (suffix, f"{overload._overloadname}_generator"):
        if candidate in packet.overloads():
            chosen = getattr(packet, candidate)
            return lambda *args, **kwargs: chosen(*args, **kwargs, generator=_C.kernel_generator())

    def with_default_generator(*args: Any, **kwargs: Any) -> Any:
        with _lock:
            before = torch.default_generator.get_state()
            torch.default_generator.set_state(_C.kernel_generator().get_state())
            try:
                return overload(*args, **kwargs)
            finally:
                torch.default_generator.set_state(before)

    return with_default_generator


def on_device(overload: OpOverload) -> Callable[..., Any]:
    """The operator itself, on NPU tensors that share the host tensors' bytes."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if running.capturing and overload in _side_effectful_functions:
            return None  # prints, saves: replay does
        index = running.device
        inside, outside = {}, {}

        def to_device(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            view = _C.device_view(value, index)
            inside[id(view)] = value
            outside[id(view)] = view  # keeps the id taken
            return view

        def to_host(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.device.type != "npu":
                return value
            return inside.get(id(value)) if id(value) in inside else _C.host_view(value)

        args, kwargs = pytree.tree_map(to_device, (args, kwargs))
        result = overload(*args, **kwargs)
        if overload.namespace == "_c10d_functional":
            wait = torch.ops._c10d_functional.wait_tensor.default
            result = pytree.tree_map_only(torch.Tensor, wait, result)
        return pytree.tree_map(to_host, result)

    return call
