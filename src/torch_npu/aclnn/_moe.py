"""Routing of tokens to experts: the gradient of permute takes the number of choices instead of the tokens."""

from __future__ import annotations

import torch

from torch_npu.aclnn import aclnn


@aclnn(
    "aclnnMoeTokenPermuteGrad(Tensor grad, Tensor sorted_indices, int num_topk, bool padded_mode) -> Tensor"
)
def moe_token_permute_grad(grad, sorted_indices, num_topk, padded_mode):
    """Each token receives the gradients of its rows; rows beyond `grad` were dropped."""
    if padded_mode:
        raise NotImplementedError("aclnnMoeTokenPermuteGrad: padded_mode must be false")
    rows = grad.new_zeros((sorted_indices.numel(), *grad.shape[1:]), dtype=torch.float32)
    kept = sorted_indices < grad.shape[0]
    rows[kept] = grad.float()[sorted_indices[kept].long()]
    return rows.view(-1, num_topk, *grad.shape[1:]).sum(1).to(grad.dtype)
