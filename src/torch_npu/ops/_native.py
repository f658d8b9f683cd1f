"""Which tensors the C++ kernels (`csrc/kernels`, `torch.ops.softnpu`) take; an operator's `kernel` serves the others."""

from __future__ import annotations

import torch

_FLOATS = frozenset((torch.float32, torch.bfloat16, torch.float16))


def fits(first: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """All tensors (None aside) are of one type: float32, bfloat16 or float16."""
    dtype = first.dtype
    return dtype in _FLOATS and all(t is None or t.dtype == dtype for t in others)


def floats(*tensors: torch.Tensor | None) -> bool:
    """Each tensor (None aside) is float32, bfloat16 or float16."""
    return all(t is None or t.dtype in _FLOATS for t in tensors)
