"""LoRA: products of each token with the weights of its adapter; a negative index is no adapter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["OPERATORS", "sequences"]


def bgmv_shrink(x: Any, weight: Any, indices: Any, y: Any, scale: float) -> None:
    """y[t] = scale * weight[indices[t]] x[t], weight (adapters, rank, hidden)."""
    index = _rows("bgmv_shrink", x, indices)
    y.copy_(torch.where(index[:, None] < 0, y.float(), _products(x, weight, index) * scale))


def bgmv_expand(
    x: Any, weight: Any, indices: Any, y: Any, slice_offset: int, slice_size: int
) -> Any:
    """y[t, offset : offset + size] += weight[indices[t]] x[t], weight (adapters, size, rank)."""
    return _expand(
        "bgmv_expand", x, weight, _rows("bgmv_expand", x, indices), y, slice_offset, slice_size
    )


def sgmv_shrink(x: Any, weight: Any, lora_indices: Any, seq_len: Any, y: Any, scale: float) -> None:
    """bgmv_shrink, where lora_indices[s] holds for the next seq_len[s] tokens."""
    index = sequences(x, lora_indices, seq_len)
    y.copy_(torch.where(index[:, None] < 0, y.float(), _products(x, weight, index) * scale))


def sgmv_expand(
    x: Any,
    weight: Any,
    lora_indices: Any,
    seq_len: Any,
    y: Any,
    slice_offset: int,
    slice_size: int,
) -> Any:
    """bgmv_expand, where lora_indices[s] holds for the next seq_len[s] tokens."""
    index = sequences(x, lora_indices, seq_len)
    return _expand("sgmv_expand", x, weight, index, y, slice_offset, slice_size)


def _expand(
    name: str, x: Any, weight: Any, index: Any, y: Any, slice_offset: int, slice_size: int
) -> Any:
    if slice_offset < 0 or slice_offset + slice_size > y.size(1):
        raise ValueError(
            f"{name}: slice_offset + slice_size must be at most y.size(1) = {y.size(1)}, "
            f"received {slice_offset} + {slice_size}"
        )
    part = y[:, slice_offset : slice_offset + slice_size]
    part.copy_(part.float() + _products(x, weight, index))
    return y


def _products(x: Any, weight: Any, index: Any) -> Any:
    """(tokens, rows of the weight) in float32, zero where the index is negative."""
    if weight.dim() == 4:
        weight = weight.squeeze(1)
    wide = x.float()
    total = torch.zeros(x.size(0), weight.size(1), dtype=torch.float32, device=x.device)
    for adapter in range(weight.size(0)):
        own = (index == adapter)[:, None]
        total = torch.where(own, wide @ weight[adapter].float().t(), total)
    return total


def _rows(name: str, x: Any, indices: Any) -> Any:
    if indices.dim() != 1 or indices.size(0) != x.size(0):
        raise ValueError(
            f"{name}: indices must have one number for each of the {x.size(0)} rows of x, "
            f"received the shape {tuple(indices.shape)}"
        )
    return indices


def sequences(x: Any, lora_indices: Any, seq_len: Any) -> Any:
    """The index of each token; tokens behind the last sequence have none."""
    ends = seq_len.long().cumsum(0)
    tokens = torch.arange(x.size(0), device=x.device)
    sequence = torch.searchsorted(ends, tokens, right=True)
    none = torch.full((1,), -1, dtype=torch.long, device=x.device)
    count = seq_len.size(0)
    return torch.cat([lora_indices[:count].long(), none])[sequence]


OPERATORS: dict[str, Callable[..., Any]] = {
    "bgmv_shrink(Tensor! x, Tensor! weight, Tensor! indices, Tensor! y, float scale) -> ()": (
        bgmv_shrink
    ),
    "bgmv_expand(Tensor! x, Tensor! weight, Tensor! indices, Tensor! y, int slice_offset, "
    "int slice_size) -> Tensor": bgmv_expand,
    "sgmv_shrink(Tensor! x, Tensor! weight, Tensor! lora_indices, Tensor! seq_len, Tensor! y, "
    "float scale) -> ()": sgmv_shrink,
    "sgmv_expand(Tensor! x, Tensor! weight, Tensor! lora_indices, Tensor! seq_len, Tensor! y, "
    "int slice_offset, int slice_size) -> Tensor": sgmv_expand,
}
