"""bfloat16 in Triton's interpreter, which keeps its bits in integers and would calculate with those.

Arithmetic, functions, products and reductions of bfloat16 go through float32 here and are rounded once.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

_ARITHMETIC = ("binary_op", "unary_op", "create_fma", "create_rsqrt", "create_erf", "create_dot")


def patch(module: Any) -> None:
    """Wraps the builder and the reductions of triton.runtime.interpreter; twice does nothing."""
    builder = module.InterpreterBuilder
    if hasattr(builder.binary_op, "__wrapped__"):
        return
    for name in _ARITHMETIC:
        setattr(builder, name, _arithmetic(module, getattr(builder, name)))
    builder.ternary_op = _ternary(module, builder.ternary_op)
    for reduction in (module.ReduceOps, module.ScanOps):
        reduction.apply_impl = _reduction(module, reduction.apply_impl)


def _is_bfloat16(module: Any, handle: Any) -> bool:
    return isinstance(handle, module.TensorHandle) and handle.dtype.scalar == module.tl.bfloat16


def _arithmetic(module: Any, before: Any) -> Any:
    @functools.wraps(before)
    def call(self: Any, *args: Any) -> Any:
        if not any(_is_bfloat16(module, a) for a in args):
            return before(self, *args)
        wide = [
            self.cast_impl(a, module.tl.float32) if _is_bfloat16(module, a) else a for a in args
        ]
        result = before(self, *wide)
        # A comparison has booleans, a product the dtype of its accumulator.
        narrow = result.data.dtype == np.float32 and _is_bfloat16(
            module, args[2] if before.__name__ in ("create_dot", "create_fma") else args[0]
        )
        return self.cast_impl(result, module.tl.bfloat16) if narrow else result

    return call


def _ternary(module: Any, before: Any) -> Any:
    wide = _arithmetic(module, before)

    @functools.wraps(before)
    def ternary_op(self: Any, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        choose = before if op is np.where else wide  # a choice moves bits
        return choose(self, lhs, rhs, other, op)

    return ternary_op


def _reduction(module: Any, before: Any) -> Any:
    @functools.wraps(before)
    def apply_impl(self: Any, input: Any) -> Any:
        kinds = [one.dtype for one in input]
        if module.tl.bfloat16 not in kinds:
            return before(self, input)
        result = before(self, tuple(_widened(module, one) for one in input))
        several = isinstance(result, (tuple, list))
        narrow = [
            _cast(module, one, kind)
            if kind == module.tl.bfloat16 and one.dtype == module.tl.float32
            else one
            for one, kind in zip(result if several else (result,), kinds)
        ]
        return tuple(narrow) if several else narrow[0]

    return apply_impl


def _widened(module: Any, value: Any) -> Any:
    if value.dtype != module.tl.bfloat16:
        return value
    return _cast(module, value, module.tl.float32)


def _cast(module: Any, value: Any, kind: Any) -> Any:
    semantic = getattr(module, "interpreter_semantic", None)  # since Triton 3.4
    if semantic is not None:
        return semantic.cast(value, kind)
    return module.tl.semantic.cast(value, kind, module.interpreter_builder)
