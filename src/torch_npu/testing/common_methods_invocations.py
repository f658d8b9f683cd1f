"""Inputs for PyTorch's operator database that upstream's tests of operators add."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.testing import make_tensor
from torch.testing._internal import common_methods_invocations as theirs


def sample_inputs_normal_tensor_second(
    self: Any, device: Any, dtype: torch.dtype, requires_grad: bool, **kwargs: Any
) -> Any:
    """torch.normal with a number or a tensor for the standard deviation."""
    cases: list[Any] = [([3, 4], 0.3, {}), ([3, 55], 0, {}), ([5, 6, 7, 8], [5, 6, 7, 8], {})]
    return theirs.sample_inputs_normal_common(self, device, dtype, requires_grad, cases, **kwargs)


def sample_inputs_median_custom(
    self: Any, device: Any, dtype: torch.dtype, requires_grad: bool, **kwargs: Any
) -> Iterator[Any]:
    """Those of reductions, and two empty tensors."""
    for shape in ((2, 0), (0, 2)):
        made = make_tensor(shape, device=device, dtype=dtype, requires_grad=requires_grad)
        yield theirs.SampleInput(made)
    yield from theirs.sample_inputs_reduction(self, device, dtype, requires_grad, **kwargs)
