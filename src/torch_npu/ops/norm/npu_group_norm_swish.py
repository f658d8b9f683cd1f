"""npu_group_norm_swish and npu_group_norm_swish_grad: group normalization followed by Swish."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits, floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops._shared._sigmoid import swish, swish_slope
from torch_npu.ops.norm._group import affine, check_groups, grouped, per_channel, statistics

#: the most channels a group may have where gradients are asked for
MAX_CHANNELS_IN_GRAD = 4000


def _check_inputs(input, num_groups, weight, bias):
    must.dtype("input", input, *vector_floats())
    check_groups(input, "num_groups", num_groups)
    for name, tensor in (("weight", weight), ("bias", bias)):
        must.dtype(name, tensor, input.dtype, torch.float32)
        must.shape(name, tensor, (input.shape[1],))
    must.same_dtype("bias", bias, "weight", weight)


@npu_op(
    "npu_group_norm_swish(Tensor input, int num_groups, Tensor weight, Tensor bias,"
    " float? eps=1e-5, float? swish_scale=1.0) -> (Tensor, Tensor, Tensor)",
    compiled="fuse",
)
def npu_group_norm_swish(input, num_groups, weight, bias, eps, swish_scale):
    r"""Normalizes the channels of each sample in groups and applies Swish.

    $$ z = \frac{x - E[x]}{\sqrt{Var[x] + \epsilon}} \cdot \gamma + \beta, \qquad
       y = \frac{z}{1 + e^{-s z}} $$

    Args:
        input: x of shape (N, C, ...), 2 to 8 dimensions; float16, bfloat16 or float32. Finite.
        num_groups: a divisor of C; for gradients a group may hold 4000 channels at most.
        weight: gamma of shape (C,), in the dtype of `input` or float32. Finite.
        bias: beta of shape (C,), in the dtype of `weight`. Finite.
        eps: added to the variance; None for 1e-5.
        swish_scale: the factor s; None for 1.

    Returns:
        y with the shape and dtype of `input`; the mean and 1 / std of each group, of shape
        (N, num_groups), in the dtype of `input`.
    """
    normed, mean, rstd = statistics(input, num_groups, 1e-5 if eps is None else eps)
    y = swish(affine(normed, weight, bias), 1.0 if swish_scale is None else swish_scale)
    return y.to(input.dtype), mean.to(input.dtype), rstd.to(input.dtype)


@npu_group_norm_swish.check
def _(input, num_groups, weight, bias):
    _check_inputs(input, num_groups, weight, bias)


@npu_group_norm_swish.native
def _(input, num_groups, weight, bias, eps, swish_scale):
    if not floats(input, weight, bias):
        return NotImplemented
    scale = 1.0 if swish_scale is None else swish_scale
    y, mean, rstd = torch.ops.softnpu.group_norm_swish(
        input, num_groups, weight, bias, 1e-5 if eps is None else eps, scale
    )
    return y, mean.to(input.dtype), rstd.to(input.dtype)


@npu_group_norm_swish.backward
def _(dy, _dmean, _drstd, *, input, num_groups, weight, bias, swish_scale, result1, result2, needs):
    names = ("input", "weight", "bias")
    mask = [needs[name] for name in names]
    grads = torch.ops.npu.npu_group_norm_swish_grad(
        dy,
        input,
        num_groups,
        weight,
        bias,
        result1,
        result2,
        mask,
        swish_scale,
    )
    return dict(zip(names, grads, strict=True))


npu_group_norm_swish.samples = [
    Sample(lambda make: (make(2, 6, 5, 3), 3, make(6), make(6))),
    Sample(lambda make: (make(3, 4), 4, make(4), make(4)), {"eps": 1e-3, "swish_scale": 1.5}),
    Sample(
        lambda make: (
            make(2, 8, 7, dtype=torch.float16),
            1,
            make(8, dtype=torch.float16),
            make(8, dtype=torch.float16),
        )
    ),
]


@npu_op(
    "npu_group_norm_swish_grad(Tensor grad, Tensor input, int num_groups, Tensor weight,"
    " Tensor bias, Tensor mean, Tensor rstd, bool[3] grad_input_mask, float? swish_scale=1.0)"
    " -> (Tensor, Tensor, Tensor)",
    compiled="fuse",
)
def npu_group_norm_swish_grad(
    grad, input, num_groups, weight, bias, mean, rstd, grad_input_mask, swish_scale
):
    """Gradients of `npu_group_norm_swish` with respect to input, weight and bias.

    Args:
        grad: the gradient of y, with the shape and dtype of `input`.
        input, num_groups, weight, bias, swish_scale: as in the forward, but all of one dtype.
        mean, rstd: the forward's results, of shape (N, num_groups), in the dtype of `input`.
        grad_input_mask: which gradients are wanted: of input, weight and bias.

    Returns:
        The three gradients, each with the shape and dtype of its tensor. The gradient of `input`
        always comes; those of weight and bias are zero where the mask leaves them out.
    """
    mean, rstd = wide(mean).unsqueeze(-1), wide(rstd).unsqueeze(-1)
    x = (grouped(wide(input), num_groups) - mean) * rstd
    normed = x.view(input.shape)
    dz = wide(grad) * swish_slope(
        affine(normed, weight, bias), 1.0 if swish_scale is None else swish_scale
    )
    scaled = grouped(dz * per_channel(weight, dz), num_groups)
    centered = scaled - scaled.mean(-1, keepdim=True)
    dx = rstd * (centered - x * (scaled * x).mean(-1, keepdim=True))
    others = tuple(d for d in range(input.dim()) if d != 1)
    dweight = (dz * normed).sum(others) if grad_input_mask[1] else torch.zeros_like(wide(weight))
    dbias = dz.sum(others) if grad_input_mask[2] else torch.zeros_like(wide(bias))
    return dx.view(input.shape).to(input.dtype), dweight.to(weight.dtype), dbias.to(bias.dtype)


@npu_group_norm_swish_grad.check
def _(grad, input, num_groups, weight, bias, mean, rstd, grad_input_mask):
    _check_inputs(input, num_groups, weight, bias)
    for name, tensor in (("grad", grad), ("weight", weight), ("mean", mean), ("rstd", rstd)):
        must.same_dtype(name, tensor, "input", input)
    must.shape("grad", grad, tuple(input.shape))
    must.shape("mean", mean, (input.shape[0], num_groups))
    must.shape("rstd", rstd, (input.shape[0], num_groups))
    count = len(grad_input_mask)
    must.hold(count == 3, "grad_input_mask", "three bools, for input, weight and bias", count)
    must.hold(
        input.shape[1] // num_groups <= MAX_CHANNELS_IN_GRAD,
        "num_groups",
        f"such that a group has at most {MAX_CHANNELS_IN_GRAD} channels for gradients",
        f"{input.shape[1]} channels in {num_groups} groups",
    )


@npu_group_norm_swish_grad.native
def _(grad, input, num_groups, weight, bias, mean, rstd, grad_input_mask, swish_scale):
    if not fits(input, grad) or not floats(weight, bias, mean, rstd):
        return NotImplemented
    scale = 1.0 if swish_scale is None else swish_scale
    dx, *found = torch.ops.softnpu.group_norm_swish_backward(
        grad, input, num_groups, weight, bias, mean, rstd, scale
    )
    pairs = zip(found, (weight, bias), grad_input_mask[1:], strict=True)
    return dx, *(d.to(of.dtype) if wanted else torch.zeros_like(of) for d, of, wanted in pairs)


npu_group_norm_swish_grad.samples = [
    Sample(
        lambda make: (
            make(2, 6, 5),
            make(2, 6, 5, low=0),
            3,
            make(6),
            make(6),
            make(2, 3),
            make(2, 3, low=1, high=2),
            [True, True, True],
        )
    ),
    Sample(
        lambda make: (
            make(2, 4),
            make(2, 4, low=0),
            2,
            make(4),
            make(4),
            make(2, 2),
            make(2, 2, low=1, high=2),
            [True, False, False],
            0.5,
        )
    ),
]
