"""What torch.nn.SyncBatchNorm calls: statistics of one rank, of all ranks, and the normalization by them.

PyTorch has these ATen operators for CUDA alone. Statistics are fp32 (fp64 for double), as there. x is
(N, C, ...), statistics (C,), those of W ranks (W, C).
"""

from __future__ import annotations

import torch

from torch_npu.ops._math import wide

_library = torch.library.Library("aten", "IMPL")  # noqa: TOR901

Optional = torch.Tensor | None


def _others(x: torch.Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def _channels(statistic: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """(C,) as (1, C, 1, ...), in the dtype of the computation."""
    return wide(statistic).view(1, -1, *(1 for _ in x.shape[2:]))


def _stats(input: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """mean and 1 / sqrt(var + eps) of each channel."""
    var, mean = torch.var_mean(wide(input), _others(input), correction=0)
    return mean, torch.rsqrt(var + eps)


def _gather_with_counts(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: Optional,
    running_var: Optional,
    momentum: float,
    eps: float,
    counts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The statistics of all ranks; the running ones are updated in place."""
    counts = wide(counts).view(-1, 1)
    mean, invstd = wide(mean), wide(invstd)
    total = counts.sum()
    joint = (counts * mean).sum(0) / total
    squares = (counts * (invstd.pow(-2) - eps + (mean - joint).square())).sum(0)
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(joint.to(running_mean.dtype), alpha=momentum)
    if running_var is not None:
        unbiased = (squares / (total - 1)).to(running_var.dtype)
        running_var.mul_(1 - momentum).add_(unbiased, alpha=momentum)
    return joint, torch.rsqrt(squares / total + eps)


def _gather(
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    running_mean: Optional,
    running_var: Optional,
    momentum: float,
    eps: float,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    counts = mean.new_full((mean.shape[0],), count)
    return _gather_with_counts(
        input, mean, invstd, running_mean, running_var, momentum, eps, counts
    )


def _elemt(
    input: torch.Tensor,
    weight: Optional,
    bias: Optional,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """(x - mean) * invstd * weight + bias."""
    y = (wide(input) - _channels(mean, input)) * _channels(invstd, input)
    y = y if weight is None else y * _channels(weight, input)
    y = y if bias is None else y + _channels(bias, input)
    return y.to(input.dtype)


def _backward_reduce(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: Optional,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Optional, Optional, Optional, Optional]:
    """The sums of dy and of dy (x - mean), and the gradients of weight and bias; what is asked for."""
    dy, over = wide(grad_out), _others(input)
    sum_dy = dy.sum(over)
    centered = (dy * (wide(input) - _channels(mean, input))).sum(over)
    kind = mean.dtype if weight is None else weight.dtype
    return (
        sum_dy if input_g else None,
        centered if input_g else None,
        (centered * wide(invstd)).to(kind) if weight_g else None,
        sum_dy.to(kind) if bias_g else None,
    )


def _backward_elemt(
    grad_out: torch.Tensor,
    input: torch.Tensor,
    mean: torch.Tensor,
    invstd: torch.Tensor,
    weight: Optional,
    sum_dy: torch.Tensor,
    sum_dy_xmu: torch.Tensor,
    count: torch.Tensor,
) -> torch.Tensor:
    """dx, from the sums over all ranks."""
    total = wide(count.float() if not count.is_floating_point() else count).sum()
    factor = wide(invstd) if weight is None else wide(invstd) * wide(weight)
    slope = wide(invstd).square() * sum_dy_xmu / total
    centered = wide(input) - _channels(mean, input)
    dx = wide(grad_out) - _channels(sum_dy / total, input) - centered * _channels(slope, input)
    return (dx * _channels(factor, input)).to(input.dtype)


for _name, _function in (
    ("batch_norm_stats", _stats),
    ("batch_norm_gather_stats", _gather),
    ("batch_norm_gather_stats_with_counts", _gather_with_counts),
    ("batch_norm_elemt", _elemt),
    ("batch_norm_backward_reduce", _backward_reduce),
    ("batch_norm_backward_elemt", _backward_elemt),
):
    _library.impl(_name, _function, "PrivateUse1")
