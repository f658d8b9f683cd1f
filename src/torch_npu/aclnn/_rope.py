"""Rotary position embedding: the mode is a number, the gradient takes x last."""

from __future__ import annotations

import torch

from torch_npu.aclnn import aclnn

_MODES = ("half", "interleave", "quarter", "interleave-half")


def _mode(mode):
    if not 0 <= mode < len(_MODES):
        raise ValueError(f"aclnnRotaryPositionEmbedding: mode must be 0 to 3, received {mode}")
    return _MODES[mode]


@aclnn("aclnnRotaryPositionEmbedding(Tensor x, Tensor cos, Tensor sin, int mode) -> Tensor")
def rotary_position_embedding(x, cos, sin, mode):
    return torch.ops.npu.npu_rotary_mul(x, cos, sin, _mode(mode))


@aclnn(
    "aclnnRotaryPositionEmbeddingGrad(Tensor dy, Tensor cos, Tensor sin, Tensor? x, int mode)"
    " -> (Tensor, Tensor, Tensor)"
)
def rotary_position_embedding_grad(dy, cos, sin, x, mode):
    """Without x the gradients of cos and sin are not asked for: zeros, for outputs of any shape, also of no element."""
    saved = torch.zeros_like(dy) if x is None else x
    dx, dcos, dsin = torch.ops.npu.npu_rotary_mul_backward(dy, saved, cos, sin, _mode(mode))
    if x is None:
        dcos = dsin = dy.new_zeros(())
    return dx, dcos, dsin
