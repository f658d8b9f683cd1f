"""Where graphs dumped as py, and programs for older versions of TorchAir, import parts of torchair.ge from.

Older programs write their nodes by hand: `op = get_default_ge_graph().op.add()`, its fields, then `Tensor(op, 0)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchair.ge._types import DataType, Format, ge_type
from torchair.ge.graph import Const, Tensor, TensorSpec, as_tensor
from torchair.ge.graph import Graph as GeGraph
from torchair.ge.graph import current as get_default_ge_graph
from torchair.ge.ir import TensorDescriptor

__all__ = [
    "Const",
    "DataType",
    "Format",
    "GeGraph",
    "Tensor",
    "TensorSpec",
    "auto_convert_to_tensor",
    "compat_as_bytes",
    "compat_as_bytes_list",
    "get_default_ge_graph",
    "get_invalid_desc",
    "is_sym",
    "next_unique_name",
    "torch_type_to_ge_type",
]


def next_unique_name(name: str | None, op: str) -> str:
    """A name that is free in the current graph, made from the operator's type if none is given."""
    return get_default_ge_graph().unique_name(name, op)


def compat_as_bytes(bytes_or_text: str | bytes, encoding: str = "utf-8") -> bytes:
    return bytes_or_text.encode(encoding) if isinstance(bytes_or_text, str) else bytes_or_text


def compat_as_bytes_list(
    bytes_or_text: Sequence[str | bytes], encoding: str = "utf-8"
) -> list[bytes]:
    if not isinstance(bytes_or_text, (list, tuple)):
        raise AssertionError(
            f"compat_as_bytes_list: expected a list or a tuple, received {type(bytes_or_text).__name__}"
        )
    return [compat_as_bytes(one, encoding) for one in bytes_or_text]


def get_invalid_desc() -> Any:
    """The description of an optional input that is absent."""
    made = TensorDescriptor()
    made.attr["_is_unfed_optional"].i = 1
    return made


def torch_type_to_ge_type(dtype: torch.dtype | None) -> int | None:
    """The number in DataType."""
    return None if dtype is None else ge_type(dtype)


def is_sym(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def auto_convert_to_tensor(
    inputs_dynamic: Sequence[bool], inputs_optional: Sequence[bool]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a function whose first parameters are inputs of a node: values among them become constants.

    Args:
        inputs_dynamic: for each input, whether it is a list of tensors.
        inputs_optional: for each input, whether it may be None.
    """
    flags = list(zip(inputs_dynamic, inputs_optional, strict=True))

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(func)

        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            for name, (dynamic, optional) in zip(signature.parameters, flags, strict=False):
                value = bound.arguments[name]
                bound.arguments[name] = _input(f"{func.__name__}: {name}", value, dynamic, optional)
            return func(*bound.args, **bound.kwargs)

        return wrapper

    return decorate


def _input(where: str, value: Any, dynamic: bool, optional: bool) -> Any:
    if dynamic:
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, Tensor) for v in value):
            raise AssertionError(f"{where}: expected a list of Tensors, received {value!r}")
        return value
    if value is None:
        if not optional:
            raise AssertionError(f"{where}: expected a Tensor or a value, received None")
        return None
    return as_tensor(value)
