"""Arguments and results of an operator as JSON, with tensors replaced by their content hash."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from softnpu.golden._files import dtype_name

#: formats of the card whose bytes are those of the plain layout
_PLAIN_FORMATS = (-1, 0, 2)


class Unsupported(Exception):
    """A value that no recording can hold; its text says which."""


def encode(value: Any, keep: Callable[[torch.Tensor], str]) -> Any:
    """`keep` takes a tensor on the CPU and returns its hash."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, torch.Tensor):
        return _tensor(value, keep)
    if isinstance(value, (int, torch.SymInt)):
        return int(value)
    if isinstance(value, (float, torch.SymFloat)):
        number = float(value)
        finite = number == number and abs(number) != float("inf")
        return number if finite else {"float": str(number)}
    if isinstance(value, (list, tuple)):
        items = [encode(item, keep) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(item, keep) for key, item in value.items()}}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, (torch.layout, torch.memory_format)):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Generator):
        return {"generator": keep(value.get_state().cpu()), "device": str(value.device)}
    raise Unsupported(f"a value of type {type(value).__name__}")


def _tensor(tensor: torch.Tensor, keep: Callable[[torch.Tensor], str]) -> dict[str, Any]:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise Unsupported(f"a tensor of layout {tensor.layout} on {tensor.device}")
    found: dict[str, Any] = {
        "tensor": keep(tensor.detach().cpu()),
        "dtype": dtype_name(tensor.dtype),
        "shape": list(tensor.shape),
        "device": tensor.device.type,
    }
    if not tensor.is_contiguous():
        found["stride"] = list(tensor.stride())
    number = _format(tensor)
    if number not in _PLAIN_FORMATS:
        found["format"] = number
    return found


def _format(tensor: torch.Tensor) -> int:
    module = sys.modules.get("torch_npu")
    if tensor.device.type != "npu" or not hasattr(module, "get_npu_format"):
        return -1
    return int(module.get_npu_format(tensor))  # type: ignore[union-attr]


def dtype_of(name: Any) -> torch.dtype:
    """The dtype of that name; other names that torch has are none."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype of torch")
    return found


def _constant(name: Any) -> Any:
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, (torch.layout, torch.memory_format)):
        raise ValueError(f"{name!r} is not a layout or memory format of torch")
    return found


def is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and "tensor" in value


def tensors(value: Any, name: str = "") -> list[tuple[str, dict[str, Any]]]:
    """(name, entry) of every tensor of an encoded value; the name says where it stands in it."""
    if is_tensor(value):
        return [(name, value)]
    if isinstance(value, dict):
        (kind, items), *_ = value.items()
        if kind == "tuple":
            value = items
        elif kind == "dict":
            dotted = [(f"{name}.{key}".lstrip("."), item) for key, item in items.items()]
            return [found for key, item in dotted for found in tensors(item, key)]
    if isinstance(value, list):
        return [
            found
            for index, item in enumerate(value)
            for found in tensors(item, f"{name}.{index}".lstrip("."))
        ]
    return []


def named(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a value that is not encoded, under the same names."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    items: list[tuple[Any, Any]] = []
    if isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    elif isinstance(value, dict):
        items = list(value.items())
    found: dict[str, torch.Tensor] = {}
    for key, item in items:
        found.update(named(item, f"{name}.{key}".lstrip(".")))
    return found


def plain(value: Any) -> Any:
    """An encoded value without what stands in tensors, to compare attributes."""
    if is_tensor(value):
        return "tensor"
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in ("generator", "device")}
    return [plain(item) for item in value] if isinstance(value, list) else value


def decode(value: Any, load: Callable[[dict[str, Any]], torch.Tensor], device: str) -> Any:
    """The value again; tensors that were on an accelerator are made on `device`."""
    if isinstance(value, list):
        return [decode(item, load, device) for item in value]
    if not isinstance(value, dict):
        return value
    if is_tensor(value):
        return _made(value, load(value), device)
    kind, content = next(iter(value.items()))
    if kind == "tuple":
        return tuple(decode(item, load, device) for item in content)
    if kind == "dict":
        return {key: decode(item, load, device) for key, item in content.items()}
    if kind == "float":
        return float(content)
    if kind == "complex":
        return complex(*content)
    if kind == "dtype":
        return dtype_of(content)
    if kind == "device":
        return torch.device("cpu" if content == "cpu" else device)
    if kind == "torch":
        return _constant(content)
    if kind == "slice":
        return slice(*content)
    if kind == "ellipsis":
        return ...
    if kind == "generator":
        where = "cpu" if value["device"] == "cpu" else device
        generator = torch.Generator(device=where)
        generator.set_state(load({"tensor": content}))
        return generator
    raise ValueError(f"the recording has a value of unknown kind {kind!r}")


def _made(entry: dict[str, Any], data: torch.Tensor, device: str) -> torch.Tensor:
    """With the strides that it had: zero strides by expanding, others by copying into place."""
    where = "cpu" if entry["device"] == "cpu" else device
    if "stride" not in entry:
        made = data.to(where)
    else:
        sizes, strides = entry["shape"], entry["stride"]
        held = [1 if stride == 0 else size for size, stride in zip(sizes, strides)]
        for dim, (size, stride) in enumerate(zip(sizes, strides)):
            if stride == 0:
                data = data.narrow(dim, 0, min(size, 1))
        length = 1 + sum((size - 1) * stride for size, stride in zip(held, strides) if size > 0)
        storage = torch.zeros(max(length, 0), dtype=data.dtype, device=where)
        made = storage.as_strided(held, strides)
        made.copy_(data)
        made = made.expand(sizes)
    if "format" in entry and where == "npu":
        made = sys.modules["torch_npu"].npu_format_cast(made, entry["format"])
    return made
