"""triton.language.extra.cann.libdevice: functions of elements, by numpy in at least float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import interpreter_semantic

from softnpu.triton.cann._values import array, tensor

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "div_rz": lambda x, y: np.trunc(np.true_divide(x, y)),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fast_dividef": np.true_divide,
    "fast_expf": np.exp,
    "fast_logf": np.log,
    "fast_log2f": np.log2,
    "floor": np.floor,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "pow": np.power,
    "reciprocal": lambda x: 1 / x,
    "relu": lambda x: np.maximum(x, 0),
    "rint": np.rint,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),  # halves away from zero
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}
_TESTS: dict[str, Callable[..., Any]] = {
    "isnan": np.isnan,
    "isinf": np.isinf,
    "finitef": np.isfinite,
    "signbit": np.signbit,
}

__all__ = sorted([*_FUNCTIONS, *_TESTS])


def _function(name: str, formula: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **_: Any) -> Any:
        like = next(a for a in args if isinstance(a, tl.tensor))
        wide = [np.asarray(array(a), dtype=np.promote_types(array(a).dtype, "f4")) for a in args]
        with np.errstate(all="ignore"):
            found = np.asarray(formula(*wide))
        kind = tl.float64 if like.dtype == tl.float64 else tl.float32
        value = tensor(found.astype("f8" if kind == tl.float64 else "f4"), kind, like)
        half = like.dtype in (tl.float16, tl.bfloat16)
        return interpreter_semantic.cast(value, like.dtype) if half else value

    call.__name__ = call.__qualname__ = name
    return call


def _test(name: str, formula: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, **_: Any) -> Any:
        return tensor(formula(array(x)), tl.int1, x)

    call.__name__ = call.__qualname__ = name
    return call


globals().update({name: _function(name, formula) for name, formula in _FUNCTIONS.items()})
globals().update({name: _test(name, formula) for name, formula in _TESTS.items()})
