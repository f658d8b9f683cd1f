"""Quantization noise: random blocks of a weight are dropped in training ("Training with Quantization Noise")."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_npu.contrib._checks import require, require_type


def quant_noise(module: nn.Module, p: float, block_size: int) -> nn.Module:
    """The module, with blocks of its weight dropped before each forward in training.

    Args:
        module: Linear, Embedding or Conv2d.
        p: the probability that a block is dropped; none for 0 or less.
        block_size: neighboring weights in a block; it must divide the inputs (or the points of a kernel).
    """
    if p <= 0:
        return module
    require_type(
        isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)),
        "quant_noise",
        "module",
        "Linear, Embedding or Conv2d",
        type(module).__name__,
    )
    what, count = _divided(module)
    require(
        count % block_size == 0, "quant_noise", "block_size", f"a divisor of {what}", block_size
    )

    def drop(layer: nn.Module, _inputs: Any) -> None:
        if layer.training:
            weight: Any = layer.weight
            dropped = _blocks(layer, weight, p, block_size)
            weight.data = weight.data.masked_fill(dropped, 0) / (1 - p)

    module.register_forward_pre_hook(drop)
    return module


def _divided(module: Any) -> tuple[str, int]:
    """What the blocks divide, in words and as a number."""
    if module.weight.ndim != 4:
        return f"the {module.weight.size(1)} input features", module.weight.size(1)
    if module.kernel_size == (1, 1):
        return f"the {module.in_channels} input channels", module.in_channels
    points = module.kernel_size[0] * module.kernel_size[1]
    return f"the {points} points of the kernel", points


def _blocks(module: Any, weight: torch.Tensor, p: float, block_size: int) -> torch.Tensor:
    """The mask of dropped weights: blocks of a row, or whole kernels of a convolution."""
    if weight.ndim == 4 and module.kernel_size != (1, 1):
        chosen = torch.bernoulli(torch.full(weight.shape[:2], p, device=weight.device))
        return chosen.bool()[:, :, None, None].expand_as(weight)
    rows = torch.full((weight.shape[0], weight.shape[1] // block_size), p, device=weight.device)
    return torch.bernoulli(rows).bool().repeat_interleave(block_size, 1).view_as(weight)
