"""From tables of schemas and functions to the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softnpu import kernels
from torch_npu.ops._registry import Operator, npu_op

__all__ = ["LIBRARY", "ascend_op", "define", "define_on_host"]

LIBRARY = "_C_ascend"


def ascend_op(schema: str, **facts: Any) -> Callable[[Callable[..., Any]], Operator]:
    """`npu_op` for an operator of this library: a kernel on plain tensors, one device task, with check and meta."""
    return npu_op(f"{LIBRARY}::{schema}", listed=False, export=False, **facts)


def define(operators: dict[str, Callable[..., Any]]) -> None:
    """Each key is a schema, "name(Tensor x) -> Tensor"; the function is its kernel and its shape function."""
    for schema, function in operators.items():
        name, rest = schema.split("(", 1)
        kernels.register(f"{LIBRARY}::{name}", function, meta=function, schema=f"({rest}")


_host: list[Any] = []


def define_on_host(operators: dict[str, Callable[..., Any]]) -> None:
    """The same for operators that take host tensors alone."""
    import torch

    library = torch.library.Library(LIBRARY, "FRAGMENT")
    for schema, function in operators.items():
        library.define(schema)
        library.impl(schema.split("(", 1)[0], function, "CPU")
    _host.append(library)  # its operators live as long as it does
