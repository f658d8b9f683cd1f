"""Old name of a helper of converters: dtype_promote."""

from __future__ import annotations

from typing import Any

import torch

from torchair.ge import Cast, Const, Tensor
from torchair.ge._types import ge_type

__all__ = ["dtype_promote"]


def dtype_promote(*tensors: Any, target_dtype: torch.dtype | int) -> Any:
    """The tensors in the target type; values become constants of it. One result for one argument, else a tuple."""
    if not tensors:
        raise AssertionError("dtype_promote: expected at least one tensor or value, received none")
    number = ge_type(target_dtype) if isinstance(target_dtype, torch.dtype) else target_dtype
    results = tuple(_promoted(one, number) for one in tensors)
    return results if len(results) > 1 else results[0]


def _promoted(one: Any, number: int) -> Tensor:
    if not isinstance(one, Tensor):
        return Const(one, dtype=number)
    return one if one.dtype == number else Cast(one, dst_type=number)
