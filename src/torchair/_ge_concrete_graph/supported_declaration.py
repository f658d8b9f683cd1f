"""Cases that a converter supports, as older programs declare them; mirrors upstream's module of this name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = [
    "BF16", "BOOL", "C64", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "Support", "T", "U8",
]  # fmt: skip


class _TypedTensor:
    """A tensor by its description: sizes and type, or a value, or the range of its values."""

    def __init__(
        self,
        *dims: int,
        dtype: torch.dtype,
        value: Any = None,
        value_range: Sequence[Any] | None = None,
    ):
        if value_range is not None and len(value_range) != 2:
            raise AssertionError(f"value_range: expected (low, high), received {value_range!r}")
        self.dims, self.dtype, self.value, self.value_range = dims, dtype, value, value_range

    def __repr__(self) -> str:
        if self.value is not None:
            return f"tensor({self.value}, dtype={self.dtype})"
        where = f", value_range={self.value_range}" if self.value_range is not None else ""
        return f"tensor({self.dims}, dtype={self.dtype}{where})"


def _kind(name: str, dtype: torch.dtype) -> type[_TypedTensor]:
    def __init__(self: _TypedTensor, *dims: int, value_range: Sequence[Any] | None = None) -> None:
        _TypedTensor.__init__(self, *dims, dtype=dtype, value_range=value_range)

    return type(name, (_TypedTensor,), {"__init__": __init__, "__module__": __name__})


F32 = _kind("F32", torch.float32)
F16 = _kind("F16", torch.float16)
BF16 = _kind("BF16", torch.bfloat16)
F64 = _kind("F64", torch.float64)
I32 = _kind("I32", torch.int32)
I16 = _kind("I16", torch.int16)
I64 = _kind("I64", torch.int64)
I8 = _kind("I8", torch.int8)
U8 = _kind("U8", torch.uint8)
C64 = _kind("C64", torch.complex64)
BOOL = _kind("BOOL", torch.bool)


class T(_TypedTensor):
    """A tensor with this value."""

    def __init__(self, value: Any, *, dtype: torch.dtype):
        super().__init__(dtype=dtype, value=value)


class Support:
    """Arguments of one call that a converter supports; tensors by their descriptions."""

    def __init__(self, *args: Any, **kwargs: Any):
        for one in [*args, *kwargs.values()]:
            for value in one if isinstance(one, (list, tuple)) else [one]:
                if isinstance(value, torch.Tensor):
                    raise AssertionError("Support: describe tensors by F32(...), I64(...), T(...)")
        self.args, self.kwargs, self.title = args, kwargs, ""

    def __str__(self) -> str:
        parts = [f"args[{i}] = {value}" for i, value in enumerate(self.args)]
        parts += [f"kwargs[{key!r}] = {value}" for key, value in self.kwargs.items()]
        return "\n  " + "\n  ".join(parts)
