"""npu_fused_linear_online_max_sum: logits of a slice of the vocabulary, reduced for the cross-entropy."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.loss._packed import pack


@npu_op(
    "npu_fused_linear_online_max_sum(Tensor input, Tensor weight, Tensor target,"
    " int vocab_start_index, int vocab_end_index, bool return_logits=False)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    chips=("A2", "A3"),
    product=True,
)
def npu_fused_linear_online_max_sum(
    input, weight, target, vocab_start_index, vocab_end_index, return_logits
):
    r"""The first part of a cross-entropy whose vocabulary is split over devices.

    $$ z = x W^T, \quad m = \max_v z_v, \quad s = \sum_v e^{z_v - m}, \quad
       p = z_{t - \mathrm{start}} - m $$

    where p and the index t - start are 0 for a target outside the slice [start, end). The results
    of all devices, reduced, go to `npu_fused_cross_entropy_loss_with_max_sum`.

    Args:
        input: x, (tokens, H) with H at most 65534; float16 or bfloat16.
        weight: W, the slice's rows, (V, H) with V above 0, of the dtype of `input`.
        target: t, the index of each token's word, (tokens,) int32 or int64.
        vocab_start_index: start, not negative.
        vocab_end_index: end, not below start.
        return_logits: True returns z, too.

    Returns:
        m, s and p, (tokens,) float32; the mask of targets outside the slice, one bit a token, lowest
        first, the rest of the last byte set, uint8; the index in the slice, of the dtype of
        `target`; and z, of the dtype of `input`, or None.

    Differs from upstream: its page counts a target equal to `vocab_end_index` as inside, its kernel
    as outside; here it is outside.
    """
    logits = (wide(input) @ wide(weight).t()).to(input.dtype)
    z = wide(logits)
    outside = (target < vocab_start_index) | (target >= vocab_end_index)
    index = (target - vocab_start_index).masked_fill(outside, 0)
    largest = z.amax(-1)
    shifted = z - largest[:, None]
    total = shifted.exp().sum(-1)
    chosen = shifted.gather(1, index.long()[:, None])[:, 0].masked_fill(outside, 0)
    returned = logits if return_logits else None
    return largest, total, chosen, pack(outside, fill=True), index.to(target.dtype), returned


@npu_fused_linear_online_max_sum.check
def _(input, weight, target, vocab_start_index, vocab_end_index):
    must.dtype("input", input, torch.float16, torch.bfloat16)
    must.ndim("input", input, 2)
    shape = tuple(input.shape)
    must.hold(shape[1] <= 65534, "input", "of a second size of at most 65534", shape)
    must.same_dtype("weight", weight, "input", input)
    must.shape("weight", weight, (None, shape[1]))
    must.hold(weight.shape[0] > 0, "weight", "of at least 1 row", tuple(weight.shape))
    must.dtype("target", target, torch.int32, torch.int64)
    must.shape("target", target, (shape[0],))
    start, end = vocab_start_index, vocab_end_index
    must.hold(start >= 0, "vocab_start_index", "not negative", start)
    must.hold(end >= start, "vocab_end_index", f"at least vocab_start_index ({start})", end)
    if must.has_data(target) and target.numel():
        inside = (target >= start) & (target < end)
        index = int(((target - start) * inside).max())
        must.hold(
            index < weight.shape[0] or not bool(inside.any()),
            "vocab_end_index",
            f"such that every target in [{start}, {end}) has a row of 'weight' ({weight.shape[0]})",
            end,
        )


npu_fused_linear_online_max_sum.samples = [
    Sample(
        lambda make: (
            make(5, 16, dtype=torch.bfloat16),
            make(12, 16, dtype=torch.bfloat16),
            make(5, dtype=torch.int64, low=0, high=24),
            6,
            18,
            True,
        )
    ),
    Sample(
        lambda make: (
            make(9, 16, dtype=torch.float16),
            make(12, 16, dtype=torch.float16),
            make(9, dtype=torch.int32, low=0, high=24),
            12,
            24,
        )
    ),
]
