"""Blocks of any size in Triton's interpreter: triton-ascend takes them, Triton wants powers of two."""

from __future__ import annotations

import functools
from typing import Any


def patch(semantic: Any, utils: Any) -> None:
    """Lifts the rule from triton.language.semantic and from the module that checks shapes; twice does nothing."""
    # A class since Triton 3.4; before, the functions of the module.
    owner = getattr(semantic, "TritonSemantic", semantic)
    before = owner.arange
    if hasattr(before, "__wrapped__"):
        return
    utils.is_power_of_two = lambda size: size > 0
    owner.arange = (_function if owner is semantic else _method)(semantic.tl, before)


def _allowed(start: Any, end: Any) -> bool:
    """Whether Triton would make the range itself, or says what is wrong with it."""
    size = end - start if isinstance(start, int) and isinstance(end, int) else 0
    return size <= 0 or size & (size - 1) == 0


def _method(tl: Any, before: Any) -> Any:
    @functools.wraps(before)
    def arange(self: Any, start: int, end: int, *, ret_ty: Any = None) -> Any:
        if _allowed(start, end):
            return before(self, start, end, ret_ty=ret_ty)
        kind = ret_ty or tl.block_type(tl.int32, [end - start])
        made = self.builder.create_make_range(kind.to_ir(self.builder), start, end)
        make = getattr(self, "make_tensor", None) or self.tensor  # since Triton 3.7
        return make(made, kind)

    return arange


def _function(tl: Any, before: Any) -> Any:
    @functools.wraps(before)
    def arange(start: int, end: int, builder: Any) -> Any:
        if _allowed(start, end):
            return before(start, end, builder)
        kind = tl.block_type(tl.int32, [end - start])
        return tl.tensor(builder.create_make_range(start, end), kind)

    return arange
