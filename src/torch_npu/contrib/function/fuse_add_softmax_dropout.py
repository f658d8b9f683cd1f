"""fuse_add_softmax_dropout: the middle of an attention layer in one operator."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from torch_npu.contrib._names import torch_npu

_FUSED_ROWS = (128, 256, 384, 512)


def fuse_add_softmax_dropout(
    training: bool,
    dropout: Callable[[torch.Tensor], torch.Tensor],
    attn_mask: torch.Tensor,
    attn_scores: torch.Tensor,
    attn_head_size: float,
    p: float = 0.5,
    dim: int = -1,
) -> torch.Tensor:
    r"""$\mathrm{dropout}(\mathrm{softmax}(\mathrm{scores} / \sqrt{d} + \mathrm{mask}))$.

    Args:
        training: whether the fused operator drops.
        dropout: the layer that drops where the shape cannot be fused.
        attn_mask: added to the scores.
        attn_scores: shape (n, c, h, w). Fused for h of 128, 256, 384 or 512 and n * c a multiple of 32.
        attn_head_size: d, the size of a head.
        p: the probability of a zero, in the fused operator.
        dim: the dimension of the softmax; the last one is the only one that upstream computes.

    Returns:
        The probabilities.
    """
    if dim not in (-1, attn_scores.dim() - 1):
        raise NotImplementedError(
            f"fuse_add_softmax_dropout: argument 'dim' must be the last dimension, but received {dim}"
        )
    scale = 1 / math.sqrt(attn_head_size)
    batch, heads, rows, _ = attn_scores.shape
    if rows in _FUSED_ROWS and batch * heads % 32 == 0:
        drop = p if training else 0.0
        return torch_npu.npu_dropout_with_add_softmax(attn_scores, attn_mask, scale, drop, -1)[2]
    scores = torch.add(attn_mask, attn_scores, alpha=scale)
    return dropout(torch.softmax(scores, dim=-1))
