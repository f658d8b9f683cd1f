"""dropout_with_byte_mask: dropout whose mask has a byte for each element."""

from __future__ import annotations

import torch

from torch_npu.contrib._checks import require
from torch_npu.contrib._names import torch_npu

__all__ = ["dropout_with_byte_mask"]


def dropout_with_byte_mask(
    input1: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    """Dropout; see `torch_npu.dropout_with_byte_mask`.

    Args:
        input1: any NPU tensor.
        p: the probability of a zero, from 0 to 1.
        training: False leaves the tensor as it is.
        inplace: False; there is no form in place.

    Returns:
        The tensor with zeros, scaled by 1 / (1 - p).
    """
    require(0 <= p <= 1, "dropout_with_byte_mask", "p", "from 0 to 1", p)
    require(not inplace, "dropout_with_byte_mask", "inplace", "False", inplace)
    return torch_npu.dropout_with_byte_mask(input1, p, training)
