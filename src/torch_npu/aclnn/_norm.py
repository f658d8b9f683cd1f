"""Normalizations whose outputs stand in another order than the operator's results."""

from __future__ import annotations

import torch

from torch_npu.aclnn import aclnn


@aclnn(
    "aclnnAddRmsNorm(Tensor x1, Tensor x2, Tensor gamma, float epsilon) -> (Tensor, Tensor, Tensor)"
)
def add_rms_norm(x1, x2, gamma, epsilon):
    """y, rstd and x, as npu_add_rms_norm returns them."""
    return torch.ops.npu.npu_add_rms_norm(x1, x2, gamma, epsilon)
