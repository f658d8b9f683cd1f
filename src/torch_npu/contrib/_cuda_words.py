"""What transfer_to_npu understands of CUDA: device names in arguments, and wrappers that translate them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

#: keyword arguments that hold a device, and those that hold several
_DEVICE_WORDS = ("device", "device_type", "map_location", "device_id")
_DEVICE_LISTS = ("device_ids",)


def to_npu(value: Any) -> Any:
    """`"cuda"`, `"cuda:1"` and `torch.device("cuda")` as the NPU's; anything else as it is."""
    if isinstance(value, str):
        return "npu" + value[4:] if value == "cuda" or value.startswith("cuda:") else value
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("npu") if value.index is None else torch.device("npu", value.index)
    if isinstance(value, dict):
        return {to_npu(key): to_npu(item) for key, item in value.items()}
    return value


def _numbered(value: Any) -> Any:
    """A device's index as a device: for arguments that can be nothing else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"npu:{value}"
    return to_npu(value)


def with_npu_devices(function: Callable[..., Any], *, numbers: bool = False) -> Callable[..., Any]:
    """The function with CUDA devices in its arguments translated.

    `numbers`: a plain integer among the positional arguments is a device too, as in `Tensor.to(0)`.
    """
    translate = _numbered if numbers else to_npu

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*[translate(a) for a in args], **_keywords(kwargs))

    return run


def _keywords(kwargs: dict[str, Any]) -> dict[str, Any]:
    for word in _DEVICE_WORDS:
        if word in kwargs:
            kwargs[word] = _numbered(kwargs[word])
    for word in _DEVICE_LISTS:
        if isinstance(kwargs.get(word), (list, tuple)):
            kwargs[word] = type(kwargs[word])(to_npu(d) for d in kwargs[word])
    return kwargs


def with_default_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, where the device is "cuda" if the caller says nothing."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        bound.arguments["device"] = to_npu(bound.arguments["device"])
        return function(*bound.args, **bound.kwargs)

    return run


def with_hccl(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with `nccl` in its strings (positional ones and `backend`) as `hccl`."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if "backend" in kwargs:
            kwargs["backend"] = _backend(kwargs["backend"])
        return function(*[_backend(a) for a in args], **kwargs)

    return run


def _backend(value: Any) -> Any:
    """`nccl`, `cuda:nccl` or `cpu:gloo,cuda:nccl` as the NPU's."""
    if not isinstance(value, str):
        return value
    words = [part.split(":") for part in value.split(",")]
    names = {"nccl": "hccl", "cuda": "npu"}
    return ",".join(":".join(names.get(w, w) for w in part) for part in words)


def with_npu_types(function: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.type("torch.cuda.FloatTensor")` as the NPU's type."""

    @functools.wraps(function)
    def run(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            dtype = "torch.npu." + dtype.removeprefix("torch.cuda.")
        return function(self, dtype, *args, **kwargs)

    return run


class _Stands(type(torch.Generator)):  # type: ignore[misc]
    """A class that stands for its base: every object of the base is an instance of it."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[1])

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.__mro__[1])


def standing_for(kind: type) -> type:
    """A class in the place of `torch.Generator` or `torch.Event` that takes CUDA devices."""

    def __new__(cls: type, *args: Any, **kwargs: Any) -> Any:
        return kind.__new__(kind, *[to_npu(a) for a in args], **_keywords(kwargs))

    return _Stands(kind.__name__, (kind,), {"__new__": __new__, "__module__": kind.__module__})
