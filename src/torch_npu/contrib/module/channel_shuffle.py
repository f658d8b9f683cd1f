"""ChannelShuffle: mixes the channels of two tensors by index instead of by transposition."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_npu.contrib._checks import require


class ChannelShuffle(nn.Module):
    """Joins two tensors along the channels and interleaves their channels.

    Args:
        in_channels: channels of both tensors together.
        groups: 2, the only number that upstream computes.
        split_shuffle: whether the result comes back as two halves.
    """

    def __init__(self, in_channels: int, groups: int = 2, split_shuffle: bool = True) -> None:
        super().__init__()
        require(groups == 2, "ChannelShuffle", "groups", "2", groups)
        self.split_shuffle = split_shuffle
        self.group_len = in_channels // groups
        self.out_channels = torch.arange(in_channels).view(groups, self.group_len).t().flatten()
        if split_shuffle:
            self.fp_index1 = self.out_channels[: self.group_len]
            self.fp_index2 = self.out_channels[self.group_len :]
        else:
            self.fp_index = self.out_channels
        self.bp_index1 = torch.arange(0, in_channels, 2)
        self.bp_index2 = torch.arange(1, in_channels, 2)
        self.checked = False

    def check_self(self, x: torch.Tensor) -> None:
        """Moves the indices to the device of `x`, once."""
        if self.bp_index1.device == x.device:
            self.checked = True
            return
        for name in ("fp_index", "fp_index1", "fp_index2", "bp_index1", "bp_index2"):
            if hasattr(self, name):
                setattr(self, name, getattr(self, name).to(x.device))

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> Any:
        if not self.checked:
            self.check_self(x1)
        back = (self.bp_index1, self.bp_index2)
        if self.split_shuffle:
            indices = (self.fp_index1, self.fp_index2)
            if self.training:
                return IndexSelectHalfImplementation.apply(x1, x2, *indices, *back)
            return indexselect_half_implementation_forward(x1, x2, *indices)
        if self.training:
            return IndexSelectFullImplementation.apply(x1, x2, self.fp_index, *back)
        return indexselect_full_implementation_forward(x1, x2, self.fp_index)


def indexselect_full_implementation_forward(
    x1: torch.Tensor, x2: torch.Tensor, fp_index: torch.Tensor
) -> torch.Tensor:
    """The channels of both tensors in the order of the index."""
    return torch.cat([x1, x2], dim=1).index_select(1, fp_index)


def indexselect_half_implementation_forward(
    x1: torch.Tensor, x2: torch.Tensor, fp_index1: torch.Tensor, fp_index2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The channels of both tensors in the order of two indices."""
    x = torch.cat([x1, x2], dim=1)
    return x.index_select(1, fp_index1), x.index_select(1, fp_index2)


class IndexSelectFullImplementation(torch.autograd.Function):
    """The whole shuffle; its gradient takes every other channel."""

    @staticmethod
    def forward(ctx: Any, x1, x2, fp_index, bp_index1, bp_index2):  # type: ignore[no-untyped-def, override]
        ctx.save_for_backward(bp_index1, bp_index2)
        return indexselect_full_implementation_forward(x1, x2, fp_index)

    @staticmethod
    def backward(ctx: Any, grad_output):  # type: ignore[no-untyped-def, override]
        first, second = ctx.saved_tensors
        return (
            grad_output.index_select(1, first),
            grad_output.index_select(1, second),
            None,
            None,
            None,
        )


class IndexSelectHalfImplementation(torch.autograd.Function):
    """The shuffle in two halves."""

    @staticmethod
    def forward(ctx: Any, x1, x2, fp_index1, fp_index2, bp_index1, bp_index2):  # type: ignore[no-untyped-def, override]
        ctx.save_for_backward(bp_index1, bp_index2)
        return indexselect_half_implementation_forward(x1, x2, fp_index1, fp_index2)

    @staticmethod
    def backward(ctx: Any, grad_output1, grad_output2):  # type: ignore[no-untyped-def, override]
        first, second = ctx.saved_tensors
        grad = torch.cat([grad_output1, grad_output2], 1)
        return grad.index_select(1, first), grad.index_select(1, second), None, None, None, None
