"""BERT's self attention from hidden states, with or without the layer norm before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu._errors import ErrCode, ops_error
from torch_npu.contrib._checks import deprecated
from torch_npu.contrib._names import torch_npu
from torch_npu.npu._format import Format

__all__ = ["npu_fused_attention", "npu_fused_attention_with_layernorm"]

_HEAD = 64
_WIDTHS = (768, 1024)
_FORMATS = [Format.FRACTAL_NZ] * 5 + [Format.ND] * 3


def _incompatible(what: str) -> RuntimeError:
    return RuntimeError(
        f"fused attention check compatibility failed, {what} not matches" + ops_error(ErrCode.VALUE)
    )


def _is_format_matched(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether states, mask and kernels are in FRACTAL_NZ and the biases behind them in ND."""
    return [torch_npu.get_npu_format(t) for t in tensors] == _FORMATS


def _check_compatibility_once(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    query_kernel: torch.Tensor,
    key_kernel: torch.Tensor,
    value_kernel: torch.Tensor,
    query_bias: torch.Tensor,
    key_bias: torch.Tensor,
    value_bias: torch.Tensor,
    gamma: torch.Tensor | None = None,
    beta: torch.Tensor | None = None,
) -> None:
    """What the card demands: FRACTAL_NZ matrices, ND vectors, and BERT's sizes. Upstream looks at the first call alone."""
    kernels = (query_kernel, key_kernel, value_kernel)
    tensors = (hidden_states, attention_mask, *kernels, query_bias, key_bias, value_bias)
    norm = [torch_npu.get_npu_format(t) for t in (gamma, beta) if t is not None]
    if not _is_format_matched(tensors) or any(f != Format.ND for f in norm):
        raise _incompatible("format")
    rows = hidden_states.shape[0]
    if hidden_states.dim() != 2 or rows % 32 or hidden_states.shape[1] not in _WIDTHS:
        raise _incompatible("shape of hidden_states")
    shape = attention_mask.shape
    if attention_mask.dim() != 4 or shape[1] != 1 or shape[2] != shape[3]:
        raise _incompatible("shape of attention_mask")
    if any(kernel.shape[0] not in _WIDTHS for kernel in kernels):
        raise _incompatible("shape of kernel")


def _attention(
    states: torch.Tensor,
    mask: torch.Tensor,
    kernels: tuple[torch.Tensor, ...],
    biases: tuple[torch.Tensor, ...],
    scale: float,
    keep_prob: float,
) -> torch.Tensor:
    batch = mask.shape[0]
    shape = (batch, states.shape[0] // batch, states.shape[1] // _HEAD, _HEAD)
    query, key, value = (
        torch_npu.npu_confusion_transpose(states @ kernel + bias, (0, 2, 1, 3), shape, False)
        for kernel, bias in zip(kernels, biases, strict=True)
    )
    return torch_npu.npu_fused_attention_score(query, key, value, mask, scale, keep_prob)


def npu_fused_attention(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    query_kernel: torch.Tensor,
    key_kernel: torch.Tensor,
    value_kernel: torch.Tensor,
    query_bias: torch.Tensor,
    key_bias: torch.Tensor,
    value_bias: torch.Tensor,
    scale: float = 1,
    keep_prob: float = 0,
) -> torch.Tensor:
    """Self attention with heads of 64: projections, scores, softmax, dropout, context.

    Args:
        hidden_states: shape (batch * sequence, 768 or 1024), float16 in FRACTAL_NZ, rows a multiple of 32.
        attention_mask: added to the scores, shape (batch, 1, sequence, sequence), FRACTAL_NZ.
        query_kernel: shape (width, width), FRACTAL_NZ; so are `key_kernel` and `value_kernel`.
        key_kernel: see `query_kernel`.
        value_kernel: see `query_kernel`.
        query_bias: shape (width), ND; so are `key_bias` and `value_bias`.
        key_bias: see `query_bias`.
        value_bias: see `query_bias`.
        scale: the factor of the scores.
        keep_prob: the probability that dropout keeps a number, above 0. Upstream's default, 0, keeps none and is
            refused.

    Returns:
        The context, shape (batch * sequence, width).
    """
    kernels = (query_kernel, key_kernel, value_kernel)
    biases = (query_bias, key_bias, value_bias)
    _check_compatibility_once(hidden_states, attention_mask, *kernels, *biases)
    return _attention(hidden_states, attention_mask, kernels, biases, scale, keep_prob)


def npu_fused_attention_with_layernorm(
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor,
    query_kernel: torch.Tensor,
    key_kernel: torch.Tensor,
    value_kernel: torch.Tensor,
    query_bias: torch.Tensor,
    key_bias: torch.Tensor,
    value_bias: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    scale: float = 1,
    keep_prob: float = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`npu_fused_attention` of normalized hidden states.

    Args:
        hidden_states: as for `npu_fused_attention`, and so are the others up to `value_bias`.
        attention_mask: see there.
        query_kernel: see there.
        key_kernel: see there.
        value_kernel: see there.
        query_bias: see there.
        key_bias: see there.
        value_bias: see there.
        gamma: the scale of the layer norm, shape (width), ND.
        beta: its offset.
        scale: the factor of the scores.
        keep_prob: the probability that dropout keeps a number, above 0.

    Returns:
        The context and the normalized hidden states, both of shape (batch * sequence, width).
    """
    deprecated(
        "npu_fused_attention_with_layernorm",
        "torch_npu.npu_fusion_attention and torch.nn.LayerNorm",
    )
    kernels = (query_kernel, key_kernel, value_kernel)
    biases = (query_bias, key_bias, value_bias)
    _check_compatibility_once(hidden_states, attention_mask, *kernels, *biases, gamma, beta)
    norm = torch.nn.functional.layer_norm(hidden_states, gamma.shape, gamma, beta)
    context = _attention(norm, attention_mask, kernels, biases, scale, keep_prob)
    return context, norm
