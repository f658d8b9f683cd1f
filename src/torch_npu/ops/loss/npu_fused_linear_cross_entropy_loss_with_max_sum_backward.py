"""npu_fused_linear_cross_entropy_loss_with_max_sum_backward: gradients of the split cross-entropy."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.loss._packed import unpack


@npu_op(
    "npu_fused_linear_cross_entropy_loss_with_max_sum_backward(Tensor grad, Tensor input,"
    " Tensor weight, Tensor target_mask, Tensor masked_target, float label_smoothing=0.0,"
    " Tensor? logits_max=None, Tensor? sum_exp_logits=None, Tensor? softmax=None)"
    " -> (Tensor, Tensor)",
    chips=("A2", "A3"),
    ge="FusedLinearCrossEntropyLossGrad",
    product=True,
)
def npu_fused_linear_cross_entropy_loss_with_max_sum_backward(
    grad, input, weight, target_mask, masked_target, logits_max, sum_exp_logits, softmax
):
    r"""Gradients of the cross-entropy of `npu_fused_linear_online_max_sum` and its second part.

    $$ G_{bv} = g_b (S_{bv} - [v = t_b \text{ and the target is in the slice}]), \quad
       dx = G W, \quad dW = G^T x $$

    with S the softmax, given or $e^{x W^T - m} / s$. G is rounded to the dtype of `input` before its products.

    Args:
        grad: g, (tokens,) float32.
        input: x, (tokens, H); float16 or bfloat16.
        weight: W, (V, H), of the dtype of `input`; with `softmax` V from 128 to 65280 and H at most 65535.
        target_mask: one bit a token in uint8, or one bool, set where the target is outside the slice.
        masked_target: t, the index in the slice, (tokens,) int32 or int64.
        label_smoothing: 0.
        logits_max: m, (tokens,) float32; required without `softmax`.
        sum_exp_logits: s, as `logits_max`.
        softmax: S, (tokens, V) float32; `logits_max` and `sum_exp_logits` are not read with it.

    Returns:
        dx and dW, of the dtype of `input`.
    """
    tokens, x, w = input.shape[0], wide(input), wide(weight)
    if softmax is None:
        softmax = (x @ w.t() - logits_max[:, None]).exp() / sum_exp_logits[:, None]
    packed = target_mask.dtype == torch.uint8
    inside = ~(unpack(target_mask, tokens) if packed else target_mask)
    hit = torch.arange(weight.shape[0], device=input.device) == masked_target[:, None]
    logits = (wide(softmax) - (hit & inside[:, None]).to(x.dtype)) * wide(grad)[:, None]
    logits = wide(logits.to(input.dtype))  # as the card's cube unit takes them
    return (logits @ w).to(input.dtype), (logits.t() @ x).to(input.dtype)


@npu_fused_linear_cross_entropy_loss_with_max_sum_backward.check
def _(
    grad,
    input,
    weight,
    target_mask,
    masked_target,
    label_smoothing,
    logits_max,
    sum_exp_logits,
    softmax,
):
    must.dtype("input", input, torch.float16, torch.bfloat16)
    must.ndim("input", input, 2)
    tokens, width = input.shape
    must.dtype("grad", grad, torch.float32)
    must.shape("grad", grad, (tokens,))
    must.same_dtype("weight", weight, "input", input)
    must.shape("weight", weight, (None, width))
    rows = weight.shape[0]
    if softmax is not None:
        whole = 128 <= rows <= 65280 and width <= 65535
        expected = "of 128 to 65280 rows of at most 65535 with 'softmax'"
        must.hold(whole, "weight", expected, tuple(weight.shape))
    must.dtype("target_mask", target_mask, torch.uint8, torch.bool)
    must.ndim("target_mask", target_mask, 1)
    if target_mask.dtype == torch.bool:
        must.shape("target_mask", target_mask, (tokens,))
    else:
        held = tuple(target_mask.shape)
        must.hold(held[0] * 8 >= tokens, "target_mask", f"of at least {tokens} bits", held)
    must.dtype("masked_target", masked_target, torch.int32, torch.int64)
    must.shape("masked_target", masked_target, (tokens,))
    must.choice("label_smoothing", label_smoothing, (0.0,))
    if softmax is None:
        for name, tensor in (("logits_max", logits_max), ("sum_exp_logits", sum_exp_logits)):
            must.present(name, tensor, "without 'softmax'")
            must.dtype(name, tensor, torch.float32)
            must.shape(name, tensor, (tokens,))
    must.dtype("softmax", softmax, torch.float32)
    must.shape("softmax", softmax, (tokens, rows))


def _first(make):
    return (
        make(5),
        make(5, 8, dtype=torch.bfloat16),
        make(128, 8, dtype=torch.bfloat16),
        make(1, dtype=torch.uint8, low=0, high=255),
        make(5, dtype=torch.int64, low=0, high=128),
    )


npu_fused_linear_cross_entropy_loss_with_max_sum_backward.samples = [
    Sample(_first, lambda make: {"softmax": make(5, 128, low=0)}),
    Sample(
        _first,
        lambda make: {"logits_max": make(5), "sum_exp_logits": make(5, low=1, high=9)},
    ),
]
