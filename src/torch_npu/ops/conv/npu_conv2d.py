"""npu_conv2d and npu_conv2d_backward: a two-dimensional convolution."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import SUM, Sharding
from torch_npu.ops.conv import _convolution as conv
from torch_npu.ops.conv import _definitions as parts

_RANKS = (4, 4)


@npu_op(
    "npu_conv2d(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, int groups) -> Tensor",
    out="npu_conv2d.out(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, int groups, *, Tensor(a!) out) -> Tensor(a!)",
    product=True,
    hf32="conv",
    aclop=True,
)
def npu_conv2d(input, weight, bias, stride, padding, dilation, groups):
    r"""A two-dimensional convolution over several input planes.

    $$ y[n, o] = \mathrm{bias}[o] + \sum_c \mathrm{weight}[o, c] \star \mathrm{input}[n, c] $$

    Args:
        input: (N, C, H, W); float16, float32, or bfloat16 where the chip has it.
        weight: (O, C / groups, kH, kW), of the dtype of `input`.
        bias: (O,), or None.
        stride: the step of the kernel in each of the 2 dimensions.
        padding: the zeros on either side of each dimension.
        dilation: the distance between the elements of the kernel.
        groups: into how many groups the channels fall; C and O must be multiples.

    Returns:
        y of shape (N, O, ...) in the dtype of `input`; products are added in fp32 and rounded once.

    Constraints:
        Of a list longer than 2 the first two count.

    Differs from upstream:
        The operator is differentiable by itself; upstream differentiates only npu_convolution.
    """
    return conv.plain(input, weight, bias, stride, padding, dilation, groups)


npu_conv2d.check(parts.plain_check(_RANKS))
npu_conv2d.meta(parts.plain_meta)
npu_conv2d.backward(parts.backward_by("npu_conv2d_backward", parts.PLAIN))


@npu_conv2d.sharding
def _(groups):
    yield Sharding((0,), {"input": 0})
    if groups == 1:
        yield Sharding((1,), {"weight": 0, "bias": 0})


npu_conv2d.samples = [
    Sample(lambda make: (make(2, 4, 7, 6), make(6, 4, 3, 3), make(6), [1, 1], [1, 1], [1, 1], 1)),
    Sample(lambda make: (make(1, 4, 9, 8), make(6, 2, 3, 2), None, [2, 1], [0, 2], [2, 1], 2)),
    Sample(
        lambda make: (
            make(2, 3, 5, 5, dtype=torch.float16),
            make(3, 1, 3, 3, dtype=torch.float16),
            make(3, dtype=torch.float16),
            [1, 1],
            [1, 1],
            [1, 1],
            3,
        )
    ),
]


@npu_op(
    "npu_conv2d_backward(Tensor input, Tensor grad_output, Tensor weight, int[] stride, "
    "int[] padding, int[] dilation, int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    product=True,
    aclop=True,
)
def npu_conv2d_backward(input, grad_output, weight, stride, padding, dilation, groups, output_mask):
    """Gradients of `npu_conv2d`.

    Args:
        input: as given to `npu_conv2d`.
        grad_output: the gradient of its result.
        weight: as given.
        stride: as given.
        padding: as given.
        dilation: as given.
        groups: as given.
        output_mask: which of the three gradients are wanted; the others are None.

    Returns:
        The gradients of `input` (its dtype), of `weight` (float32) and of the bias (the dtype of
        `grad_output`).
    """
    return parts.plain_gradients(
        input, grad_output, weight, stride, padding, dilation, groups, output_mask
    )


npu_conv2d_backward.check(parts.plain_gradients_check(_RANKS))
npu_conv2d_backward.meta(parts.gradients_meta)


@npu_conv2d_backward.sharding
def _(groups):
    yield Sharding((0, SUM, SUM), {"input": 0, "grad_output": 0})
    if groups == 1:
        yield Sharding((SUM, 0, 0), {"grad_output": 1, "weight": 0})


npu_conv2d_backward.samples = [
    Sample(
        lambda make: (
            make(2, 4, 7, 6),
            make(2, 6, 7, 6),
            make(6, 4, 3, 3),
            [1, 1],
            [1, 1],
            [1, 1],
            1,
            [True, True, True],
        )
    ),
    Sample(
        lambda make: (
            make(1, 4, 9, 8),
            make(1, 6, 3, 11),
            make(6, 2, 3, 2),
            [2, 1],
            [0, 2],
            [2, 1],
            2,
            [True, False, True],
        )
    ),
]
