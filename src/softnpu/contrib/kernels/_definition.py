"""An operator without a name: what vllm-ascend and sgl-kernel-npu define alike, each with a schema of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_npu.ops._registry import Operator

__all__ = ["Definition"]


class Definition:
    """Decorates a kernel and, as an `Operator` does, its `check` and `meta`; `register` makes operators of them."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.kernel = kernel
        self.parts: dict[str, Callable[..., Any]] = {}

    def check(self, function: Callable[..., None]) -> Callable[..., None]:
        self.parts["check"] = function
        return function

    def meta(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self.parts["meta"] = function
        return function

    def register(self, decorator: Callable[[Callable[..., Any]], Operator]) -> Operator:
        """The operator of `npu_op(schema, ...)`, with these parts."""
        operator = decorator(self.kernel)
        for name, part in self.parts.items():
            getattr(operator, name)(part)
        return operator
