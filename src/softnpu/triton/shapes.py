"""Blocks of any size in Triton's interpreter: triton-ascend takes them, Triton wants powers of two."""

from __future__ import annotations

import functools
from typing import Any


def patch(semantic: Any, utils: Any) -> None:
    """Lifts the rule from triton.language.semantic and triton._utils; twice does nothing."""
    before = semantic.TritonSemantic.arange
    if hasattr(before, "__wrapped__"):
        return
    utils.is_power_of_two = lambda size: size > 0

    @functools.wraps(before)
    def arange(self: Any, start: int, end: int, *, ret_ty: Any = None) -> Any:
        size = end - start if isinstance(start, int) and isinstance(end, int) else 0
        if size <= 0 or size & (size - 1) == 0:
            return before(self, start, end, ret_ty=ret_ty)  # or says what is wrong
        kind = ret_ty or semantic.tl.block_type(semantic.tl.int32, [size])
        made = self.builder.create_make_range(kind.to_ir(self.builder), start, end)
        return self.make_tensor(made, kind)

    semantic.TritonSemantic.arange = arange
