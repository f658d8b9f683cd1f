"""npu_fast_condition_index_put: `x[condition] = value` without an index."""

from __future__ import annotations

import torch

from torch_npu.contrib._checks import require_type

__all__ = ["npu_fast_condition_index_put"]


def npu_fast_condition_index_put(
    x: torch.Tensor, condition: torch.Tensor, value: float
) -> torch.Tensor:
    """A copy of `x` with `value` where the condition holds.

    Args:
        x: any tensor.
        condition: bool, of the shape of `x`.
        value: a number.

    Returns:
        The copy.
    """
    expected = "of dtype torch.bool"
    require_type(
        condition.dtype == torch.bool,
        "npu_fast_condition_index_put",
        "condition",
        expected,
        condition.dtype,
    )
    return torch.where(condition, torch.full_like(x, value), x)
