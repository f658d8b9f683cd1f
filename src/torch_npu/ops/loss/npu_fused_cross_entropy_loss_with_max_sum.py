"""npu_fused_cross_entropy_loss_with_max_sum: the loss from the reduced logits."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_fused_cross_entropy_loss_with_max_sum(Tensor logits_max, Tensor sum_exp_logits,"
    " Tensor predicted_logits, *, float? label_smoothing=0.0, Tensor? input=None,"
    " Tensor? weight=None, Tensor? vocab_parallel_logits=None) -> (Tensor, Tensor)",
    chips=("A2", "A3", "A5"),
)
def npu_fused_cross_entropy_loss_with_max_sum(
    logits_max, sum_exp_logits, predicted_logits, vocab_parallel_logits
):
    r"""The cross-entropy from what `npu_fused_linear_online_max_sum` returns, reduced over the devices.

    $$ \mathrm{loss} = \log s - p, \quad \mathrm{softmax} = \frac{e^{z - m}}{s} $$

    Args:
        logits_max: m, (tokens,) float32.
        sum_exp_logits: s, as `logits_max`.
        predicted_logits: p, as `logits_max`.
        label_smoothing: 0.
        input, weight: of no effect.
        vocab_parallel_logits: z, (tokens, V) float16, bfloat16 or float32; None for no softmax.

    Returns:
        The loss, (tokens,) float32, and the softmax with the shape of z, float32, or None.
    """
    loss = sum_exp_logits.log() - predicted_logits
    if vocab_parallel_logits is None:
        return loss, None
    shifted = wide(vocab_parallel_logits) - logits_max[:, None]
    return loss, shifted.exp() / sum_exp_logits[:, None]


@npu_fused_cross_entropy_loss_with_max_sum.check
def _(
    logits_max,
    sum_exp_logits,
    predicted_logits,
    label_smoothing,
    input,
    weight,
    vocab_parallel_logits,
):
    must.ndim("logits_max", logits_max, 1)
    for name, tensor in (
        ("logits_max", logits_max),
        ("sum_exp_logits", sum_exp_logits),
        ("predicted_logits", predicted_logits),
    ):
        must.dtype(name, tensor, torch.float32)
        must.shape(name, tensor, tuple(logits_max.shape))
    must.choice("label_smoothing", 0.0 if label_smoothing is None else label_smoothing, (0.0,))
    must.anything(input, weight)
    name = "vocab_parallel_logits"
    must.dtype(name, vocab_parallel_logits, torch.float16, torch.bfloat16, torch.float32)
    must.shape(name, vocab_parallel_logits, (logits_max.shape[0], None))


npu_fused_cross_entropy_loss_with_max_sum.samples = [
    Sample(
        lambda make: (make(5), make(5, low=1, high=9), make(5, low=-2, high=0)),
        lambda make: {"vocab_parallel_logits": make(5, 7).bfloat16()},
    ),
    Sample(lambda make: (make(4), make(4, low=1, high=9), make(4, low=-2, high=0))),
]
