"""npu_group_norm_silu: group normalization followed by SiLU."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._native import floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops._shared._sigmoid import swish
from torch_npu.ops.norm._group import affine, check_groups, statistics


def _statistics_dtype(input, weight, bias):
    """The dtype of `input`; on Ascend950 promoted with that of the weight, or of the bias."""
    partner = weight if weight is not None else bias
    if partner is None or chips.current().family != "A5":
        return input.dtype
    return torch.promote_types(input.dtype, partner.dtype)


@npu_op(
    "npu_group_norm_silu(Tensor input, Tensor? weight, Tensor? bias, int group, float eps=0.00001)"
    " -> (Tensor, Tensor, Tensor)",
    compiled="fuse",
)
def npu_group_norm_silu(input, weight, bias, group, eps):
    r"""Normalizes the channels of each sample in groups and applies SiLU.

    $$ z = \frac{x - E[x]}{\sqrt{Var[x] + \epsilon}} \cdot \gamma + \beta, \qquad
       y = \frac{z}{1 + e^{-z}} $$

    Args:
        input: x of shape (N, C, ...), 2 to 8 dimensions, N and C not 0 (Ascend950: none but N of size
            0); float16, float32, and bfloat16 but on Atlas inference series.
        weight: gamma of shape (C,), in the dtype of `input` or float32; None for ones.
        bias: beta of shape (C,), in the dtype of `weight`; None for zeros.
        group: the number of groups, greater than 0, a divisor of C.
        eps: added to the variance, greater than 0.

    Returns:
        y with the shape and dtype of `input`; the mean and 1 / std of each group, of shape
        (N, group), in the dtype of `input` (on Ascend950 promoted with the dtype of `weight`). Of an
        empty `input` they are 0 and NaN.
    """
    kept = _statistics_dtype(input, weight, bias)
    if input.numel() == 0:
        mean = input.new_zeros(input.shape[0], group, dtype=kept)
        return torch.empty_like(input), mean, torch.full_like(mean, torch.nan)
    normed, mean, rstd = statistics(input, group, eps)
    return swish(affine(normed, weight, bias)).to(input.dtype), mean.to(kept), rstd.to(kept)


@npu_group_norm_silu.check
def _(input, weight, bias, group, eps):
    must.dtype("input", input, *vector_floats())
    check_groups(input, "group", group)
    shape = tuple(input.shape)
    new = chips.current().family == "A5"
    filled, which = (shape[1:], "after the first") if new else (shape[:2], "among the first two")
    must.hold(all(filled), "input", f"without a dimension of size 0 {which}", shape)
    must.hold(eps > 0, "eps", "greater than 0", eps)
    for name, tensor in (("weight", weight), ("bias", bias)):
        must.dtype(name, tensor, input.dtype, torch.float32)
        must.shape(name, tensor, (shape[1],))
    if weight is not None:
        must.same_dtype("bias", bias, "weight", weight)


@npu_group_norm_silu.native
def _(input, weight, bias, group, eps):
    if not floats(input, weight, bias) or input.numel() == 0:
        return NotImplemented
    y, mean, rstd = torch.ops.softnpu.group_norm_swish(input, group, weight, bias, eps, 1.0)
    kept = _statistics_dtype(input, weight, bias)
    return y, mean.to(kept), rstd.to(kept)


npu_group_norm_silu.samples = [
    Sample(lambda make: (make(2, 6, 5, 3), make(6), make(6), 3)),
    Sample(lambda make: (make(3, 4), None, None, 2), {"eps": 1e-3}),
    Sample(lambda make: (make(2, 8, 7, dtype=torch.float16), make(8), make(8), 4)),
]
