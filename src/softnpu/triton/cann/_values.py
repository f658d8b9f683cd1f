"""Between the interpreter's tensors and numpy: what extension and libdevice share."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_semantic

__all__ = ["array", "integer", "integers", "number", "tensor"]


def number(value: Any) -> Any:
    """A constexpr's value; everything else as it is."""
    return value.value if isinstance(value, tl.constexpr) else value


def integer(value: Any) -> int:
    """An int from a constexpr, an int or a scalar of the kernel."""
    value = number(value)
    return int(value.handle.data.reshape(())) if isinstance(value, tl.tensor) else int(value)


def integers(values: Any) -> tuple[int, ...]:
    """Several of them; one alone is a tuple of one."""
    values = number(values)
    return tuple(map(integer, values if isinstance(values, (tuple, list, tl.tuple)) else (values,)))


def array(value: Any) -> np.ndarray:
    """The values, bfloat16 as float32 (the interpreter keeps its bits in integers)."""
    if not isinstance(value, tl.tensor):
        return np.asarray(number(value))
    if value.dtype == tl.bfloat16:
        value = interpreter_semantic.cast(value, tl.float32)
    return value.handle.data


def tensor(data: np.ndarray, dtype: tl.dtype, like: Any = None) -> Any:
    """A tensor of the kernel with these values; scalar if `like` is one."""
    scalar = like is not None and not like.type.is_block()
    shape = [] if scalar else list(data.shape)
    kept = tl.block_type(dtype, shape) if shape else dtype
    return tl.tensor(TensorHandle(np.ascontiguousarray(data), dtype), kept)
