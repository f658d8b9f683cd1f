"""Group normalization as npu_group_norm_silu and npu_group_norm_swish use it."""

from __future__ import annotations

import math

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide


def check_groups(input: torch.Tensor, name: str, groups: int) -> None:
    """`input` has 2 to 8 dimensions and `groups` (the argument `name`) divides its channels."""
    must.ndim("input", input, 2, 8)
    must.hold(groups > 0, name, "greater than 0", groups)
    channels = input.shape[1]
    must.hold(
        channels % groups == 0, name, f"a divisor of the {channels} channels of 'input'", groups
    )


def per_channel(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A (C,) tensor widened and shaped to broadcast against an (N, C, ...) one."""
    return wide(tensor).view(1, -1, *(1 for _ in like.shape[2:]))


def grouped(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    """An (N, C, ...) tensor as (N, groups, elements of a group)."""
    return tensor.reshape(tensor.shape[0], groups, math.prod(tensor.shape[1:]) // groups)


def statistics(
    input: torch.Tensor, groups: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x normalized within each group, the mean and 1 / std, the latter two of shape (N, groups)."""
    x = grouped(wide(input), groups)
    mean = x.mean(-1, keepdim=True)
    rstd = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + eps)
    normed = ((x - mean) * rstd).view(input.shape)
    return normed, mean.squeeze(-1), rstd.squeeze(-1)


def affine(
    normed: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None
) -> torch.Tensor:
    """normed * weight + bias, channel by channel; None stands for one and zero."""
    y = normed if weight is None else normed * per_channel(weight, normed)
    return y if bias is None else y + per_channel(bias, normed)
