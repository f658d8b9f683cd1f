"""npu_conv_transpose2d and npu_conv_transpose2d_backward: a transposed convolution in the plane."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.conv import _convolution as conv
from torch_npu.ops.conv import _definitions as parts

_RANKS = (4, 4)


@npu_op(
    "npu_conv_transpose2d(Tensor input, Tensor weight, Tensor? bias, int[] padding, "
    "int[] output_padding, int[] stride, int[] dilation, int groups) -> Tensor",
    product=True,
    hf32="conv",
    aclop=True,
)
def npu_conv_transpose2d(input, weight, bias, padding, output_padding, stride, dilation, groups):
    r"""A transposed convolution ("deconvolution") of two dimensions.

    $$ y[n, o] = \mathrm{bias}[o] + \sum_c \mathrm{weight}[c, o] \star^T \mathrm{input}[n, c] $$

    Args:
        input: (N, C, H, W); float16, float32, or bfloat16 where the chip has it.
        weight: (C, O / groups, kH, kW), of the dtype of `input`.
        bias: (O,), or None.
        padding: `dilation * (kernel - 1) - padding` zeros go on either side of each dimension.
        output_padding: what is added to one side of the result in each dimension.
        stride: the step of the kernel.
        dilation: the distance between the elements of the kernel.
        groups: into how many groups the channels fall; C and O must be multiples.

    Returns:
        y of shape (N, O, ...) in the dtype of `input`; products are added in fp32 and rounded once.

    Constraints:
        `output_padding` is smaller than the stride or the dilation. Of a list longer than the
        number of spatial dimensions the first ones count.

    Differs from upstream:
        The operator is differentiable by itself; upstream differentiates only
        npu_convolution_transpose.
    """
    return conv.transposed(input, weight, bias, padding, output_padding, stride, dilation, groups)


npu_conv_transpose2d.check(parts.transposed_check(_RANKS))
npu_conv_transpose2d.meta(parts.transposed_meta)
npu_conv_transpose2d.backward(parts.backward_by("npu_conv_transpose2d_backward", parts.TRANSPOSED))
npu_conv_transpose2d.samples = [
    parts.TRANSPOSED_PLANE,
    Sample(
        lambda make: (
            make(1, 4, 3, 3, dtype=torch.float16),
            make(4, 2, 2, 2, dtype=torch.float16),
            None,
            [0, 0],
            [0, 0],
            [2, 2],
            [1, 1],
            1,
        )
    ),
]


@npu_op(
    "npu_conv_transpose2d_backward(Tensor input, Tensor grad_output, Tensor weight, int[] padding, "
    "int[] output_padding, int[] stride, int[] dilation, int groups, bool[3] output_mask) "
    "-> (Tensor, Tensor, Tensor)",
    product=True,
    aclop=True,
)
def npu_conv_transpose2d_backward(
    input, grad_output, weight, padding, output_padding, stride, dilation, groups, output_mask
):
    """Gradients of `npu_conv_transpose2d`.

    Args:
        input: as given to the transposed convolution.
        grad_output: the gradient of its result.
        weight: as given.
        padding: as given.
        output_padding: as given.
        stride: as given.
        dilation: as given.
        groups: as given.
        output_mask: which of the three gradients are wanted; the others are None.

    Returns:
        The gradients of `input` (its dtype), of `weight` (float32) and of the bias (the dtype of
        `grad_output`).
    """
    return parts.transposed_gradients(
        input, grad_output, weight, padding, output_padding, stride, dilation, groups, output_mask
    )


npu_conv_transpose2d_backward.check(parts.transposed_gradients_check(_RANKS))
npu_conv_transpose2d_backward.meta(parts.gradients_meta)
npu_conv_transpose2d_backward.samples = [
    parts.TRANSPOSED_PLANE_GRADIENTS,
]
