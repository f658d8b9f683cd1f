"""DropoutWithByteMask: dropout whose mask has a byte for each element."""

from __future__ import annotations

import torch
from torch import nn

from torch_npu.contrib._checks import require
from torch_npu.contrib.function.npu_functional import dropout_with_byte_mask

__all__ = ["DropoutWithByteMask"]


class DropoutWithByteMask(nn.Module):
    """Dropout on NPU tensors; see `torch_npu.dropout_with_byte_mask`.

    Args:
        p: the probability of a zero, from 0 to 1.
        inplace: False; there is no form in place.
        max_seed: kept from an older interface; a positive number.
    """

    def __init__(self, p=0.5, inplace=False, max_seed=2**10 - 1):
        super().__init__()
        require(0 <= p <= 1, "DropoutWithByteMask", "p", "from 0 to 1", p)
        require(max_seed > 0, "DropoutWithByteMask", "max_seed", "positive", max_seed)
        self.p, self.inplace = p, inplace

    def forward(self, input1: torch.Tensor) -> torch.Tensor:
        return dropout_with_byte_mask(input1, self.p, self.training, self.inplace)
