"""npu_conv3d and npu_conv3d_backward: a three-dimensional convolution."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.conv import _convolution as conv
from torch_npu.ops.conv import _definitions as parts

_RANKS = (5, 5)
_check_gradients = parts.plain_gradients_check(_RANKS, "grad")


@npu_op(
    "npu_conv3d(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, int groups) -> Tensor",
    out="npu_conv3d.out(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, int groups, *, Tensor(a!) out) -> Tensor(a!)",
    product=True,
    hf32="conv",
    aclop=True,
)
def npu_conv3d(input, weight, bias, stride, padding, dilation, groups):
    r"""A three-dimensional convolution over several input planes.

    $$ y[n, o] = \mathrm{bias}[o] + \sum_c \mathrm{weight}[o, c] \star \mathrm{input}[n, c] $$

    Args:
        input: (N, C, T, H, W); float16, float32, or bfloat16 where the chip has it.
        weight: (O, C / groups, kT, kH, kW); of another dtype it is cast to that of `input`.
        bias: (O,), or None.
        stride: the step of the kernel in each of the 3 dimensions.
        padding: the zeros on either side of each dimension.
        dilation: the distance between the elements of the kernel.
        groups: into how many groups the channels fall; C and O must be multiples.

    Returns:
        y of shape (N, O, ...) in the dtype of `input`; products are added in fp32 and rounded once.

    Constraints:
        Of a list longer than 3 the first three count.

    Differs from upstream:
        The operator is differentiable by itself; upstream differentiates only npu_convolution.
    """
    return conv.plain(input, weight, bias, stride, padding, dilation, groups)


npu_conv3d.check(parts.plain_check(_RANKS))
npu_conv3d.meta(parts.plain_meta)
npu_conv3d.backward(parts.backward_by("npu_conv3d_backward", parts.PLAIN))
npu_conv3d.samples = [
    Sample(
        lambda make: (
            make(2, 4, 4, 5, 6),
            make(6, 4, 3, 3, 3),
            make(6),
            [1, 1, 1],
            [1, 1, 1],
            [1, 1, 1],
            1,
        )
    ),
    Sample(
        lambda make: (
            make(1, 4, 5, 6, 5, dtype=torch.float16),
            make(6, 2, 2, 3, 2, dtype=torch.float16),
            None,
            [2, 1, 1],
            [0, 2, 1],
            [2, 1, 1],
            2,
        )
    ),
]


@npu_op(
    "npu_conv3d_backward(Tensor input, Tensor grad, Tensor weight, int[] stride, "
    "int[] padding, int[] dilation, int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    product=True,
    aclop=True,
)
def npu_conv3d_backward(input, grad, weight, stride, padding, dilation, groups, output_mask):
    """Gradients of `npu_conv3d`.

    Args:
        input: as given to `npu_conv3d`.
        grad: the gradient of its result.
        weight: as given.
        stride: as given.
        padding: as given.
        dilation: as given.
        groups: as given.
        output_mask: which of the three gradients are wanted; the others are None.

    Returns:
        The gradients of `input` (its dtype), of `weight` (float32) and of the bias (the dtype of
        `grad`).
    """
    options = (stride, padding, dilation, groups, output_mask)
    return parts.plain_gradients(input, grad, weight, *options)


@npu_conv3d_backward.check
def _(input, grad, weight, stride, padding, dilation, groups):
    _check_gradients(input, grad, weight, stride, padding, dilation, groups)


@npu_conv3d_backward.meta
def _(input, grad, weight, output_mask):
    return parts.gradients_meta(input, grad, weight, output_mask)


npu_conv3d_backward.samples = [
    Sample(
        lambda make: (
            make(2, 4, 4, 5, 6),
            make(2, 6, 4, 5, 6),
            make(6, 4, 3, 3, 3),
            [1, 1, 1],
            [1, 1, 1],
            [1, 1, 1],
            1,
            [True, True, True],
        )
    ),
]
