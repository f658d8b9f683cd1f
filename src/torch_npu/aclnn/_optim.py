"""Optimizer steps, in place."""

from __future__ import annotations

import torch

from torch_npu.aclnn import aclnn


@aclnn(
    "aclnnApplyAdamWV2(Tensor(a!) var, Tensor(b!) m, Tensor(c!) v, Tensor(d!)? max_grad_norm, Tensor grad,"
    " Tensor step, float lr, float beta1, float beta2, float weight_decay, float eps, bool amsgrad, bool maximize)"
    " -> ()"
)
def apply_adam_w_v2(
    var, m, v, max_grad_norm, grad, step, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize
):  # fmt: skip
    """AdamW in fp32. The card's kernel adds one to `step`, and with amsgrad `max_grad_norm` is the largest v."""
    time = float(step.item()) + 1.0
    gradient = -grad.float() if maximize else grad.float()
    first = m.float() * beta1 + gradient * (1 - beta1)
    second = v.float() * beta2 + gradient * gradient * (1 - beta2)
    largest = second
    if amsgrad:
        largest = torch.maximum(max_grad_norm.float(), second)
        max_grad_norm.copy_(largest)
    denominator = largest.sqrt() / (1 - beta2**time) ** 0.5 + eps
    decayed = var.float() * (1 - lr * weight_decay)
    var.copy_(decayed - lr / (1 - beta1**time) * first / denominator)
    m.copy_(first)
    v.copy_(second)


@aclnn(
    "aclnnApplyFusedEmaAdam(Tensor grad, Tensor(a!) var, Tensor(b!) m, Tensor(c!) v, Tensor(d!) s, Tensor step,"
    " float lr, float ema_decay, float beta1, float beta2, float eps, int mode, bool bias_correction,"
    " float weight_decay) -> ()"
)
def apply_fused_ema_adam(
    grad, var, m, v, s, step, lr, ema_decay, beta1, beta2, eps, mode, bias_correction, weight_decay
):  # fmt: skip
    """Adam (mode 0: weight decay in the gradient; mode 1: in the update) and a moving average of the weights, in fp32."""
    if mode not in (0, 1):
        raise ValueError(f"aclnnApplyFusedEmaAdam: mode must be 0 or 1, received {mode}")
    time = float(step.item())
    weights = var.float()
    gradient = grad.float() + weight_decay * weights if mode == 0 else grad.float()
    first = beta1 * m.float() + (1 - beta1) * gradient
    second = beta2 * v.float() + (1 - beta2) * gradient * gradient
    corrections = (1 - beta1**time, 1 - beta2**time) if bias_correction else (1.0, 1.0)
    update = first / corrections[0] / ((second / corrections[1]).sqrt() + eps)
    if mode == 1:
        update = update + weight_decay * weights
    updated = weights - lr * update
    for target, value in ((var, updated), (m, first), (v, second)):
        target.copy_(value)
    s.copy_(ema_decay * s.float() + (1 - ema_decay) * updated)
