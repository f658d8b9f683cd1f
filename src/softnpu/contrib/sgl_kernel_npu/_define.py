"""From schemas and functions to the dispatcher."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from torch_npu.ops._registry import Operator, npu_op

__all__ = ["sgl_op"]


def sgl_op(schema: str, **facts: Any) -> Callable[[Callable[..., Any]], Operator]:
    """`npu_op` for an operator of this library, which adds to the namespace npu: torch_npu does not export it.

    A written argument of its schemas may be "Tensor!": each such one is an alias set of its own.
    """
    names = itertools.count()
    schema = re.sub(r"Tensor!", lambda _: f"Tensor(w{next(names)}!)", schema)
    return npu_op(schema, listed=False, export=False, **facts)
