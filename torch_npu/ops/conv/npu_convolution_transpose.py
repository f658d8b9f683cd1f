"""npu_convolution_transpose and its backward operators: two or three dimensions, by the input."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.conv import _convolution as conv

_RANKS = (4, 5)


@npu_op(
    "npu_convolution_transpose(Tensor input, Tensor weight, Tensor? bias, int[] padding, "
    "int[] output_padding, int[] stride, int[] dilation, int groups) -> Tensor"
)
class NpuConvolutionTranspose:
    r"""A transposed convolution of two or three dimensions, by the rank of `input`.

    $$ y[n, o] = \mathrm{bias}[o] + \sum_c \mathrm{weight}[c, o] \star^T \mathrm{input}[n, c] $$

    Args:
        input: (N, C, H, W) or (N, C, T, H, W); float16, float32, or bfloat16 where the chip has it.
        weight: (C, O / groups, kH, kW) or (C, O / groups, kT, kH, kW), of the dtype of `input`.
        bias: (O,), or None.
        padding: `dilation * (kernel - 1) - padding` zeros go on either side of each dimension.
        output_padding: what is added to one side of the result in each dimension.
        stride: the step of the kernel.
        dilation: the distance between the elements of the kernel.
        groups: into how many groups the channels fall; C and O must be multiples.

    Returns:
        y of shape (N, O, ...) in the dtype of `input`; products are added in fp32 and rounded once.

    Constraints:
        `output_padding` is smaller than the stride or the dilation. A list longer than the number of
        spatial dimensions is taken only if all its values are the same.
    """

    saves = ("input", "weight", "bias")

    def check(input, weight, bias, padding, output_padding, stride, dilation, groups):
        conv.check_transposed(
            input, weight, bias, padding, output_padding, stride, dilation, groups, _RANKS
        )

    def kernel(input, weight, bias, padding, output_padding, stride, dilation, groups):
        return conv.transposed(
            input, weight, bias, padding, output_padding, stride, dilation, groups
        )

    def meta(input, weight, bias, padding, output_padding, stride, dilation, groups):
        return conv.transposed_shape(
            input, weight, padding, output_padding, stride, dilation, groups
        )

    def backward(ctx, grad):
        a = ctx.args
        found = torch.ops.npu.npu_convolution_transpose_backward(
            a.input,
            grad,
            a.weight,
            a.padding,
            a.output_padding,
            a.stride,
            a.dilation,
            a.groups,
            conv.asked(ctx),
        )
        return conv.named(ctx, found)

    samples = [
        Sample(
            lambda make: (
                make(2, 4, 5, 4),
                make(4, 3, 3, 3),
                make(6),
                [1, 1],
                [1, 0],
                [2, 1],
                [1, 2],
                2,
            )
        ),
        Sample(
            lambda make: (
                make(1, 2, 3, 4, 3),
                make(2, 3, 2, 3, 2),
                None,
                [0, 1, 0],
                [0, 0, 1],
                [1, 1, 2],
                [1, 1, 1],
                1,
            )
        ),
    ]


@npu_op(
    "npu_convolution_transpose_backward(Tensor input, Tensor grad, Tensor weight, int[] padding, "
    "int[] output_padding, int[] stride, int[] dilation, int groups, bool[3] grad_input_mask) "
    "-> (Tensor, Tensor, Tensor)"
)
class NpuConvolutionTransposeBackward:
    """Gradients of `npu_convolution_transpose`.

    Args:
        input: as given to the transposed convolution.
        grad: the gradient of its result.
        weight: as given.
        padding: as given.
        output_padding: as given.
        stride: as given.
        dilation: as given.
        groups: as given.
        grad_input_mask: which of the three gradients are wanted; the others are None.

    Returns:
        The gradients of `input` and `weight` in their dtypes, and of the bias in that of `grad`.
    """

    def check(
        input, grad, weight, padding, output_padding, stride, dilation, groups, grad_input_mask
    ):
        conv.check_transposed(
            input, weight, None, padding, output_padding, stride, dilation, groups, _RANKS
        )
        sizes = conv.transposed_sizes(input, weight, padding, output_padding, stride, dilation)
        conv.check_gradients(input, "grad", grad, weight.shape[1] * groups, sizes)

    def kernel(
        input, grad, weight, padding, output_padding, stride, dilation, groups, grad_input_mask
    ):
        found = conv.gradients(
            grad,
            input,
            weight,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            grad_input_mask,
        )
        return conv.in_weight_dtype(found, weight)

    def meta(
        input, grad, weight, padding, output_padding, stride, dilation, groups, grad_input_mask
    ):
        found = conv.gradient_shapes(input, weight, grad, grad_input_mask)
        return conv.in_weight_dtype(found, weight)

    samples = [
        Sample(
            lambda make: (
                make(2, 4, 5, 4),
                make(2, 6, 10, 6),
                make(4, 3, 3, 3),
                [1, 1],
                [1, 0],
                [2, 1],
                [1, 2],
                2,
                [True, True, True],
            )
        ),
        Sample(
            lambda make: (
                make(1, 2, 3, 4, 3),
                make(1, 3, 4, 4, 7),
                make(2, 3, 2, 3, 2),
                [0, 1, 0],
                [0, 0, 1],
                [1, 1, 2],
                [1, 1, 1],
                1,
                [True, True, False],
            )
        ),
    ]


@npu_op(
    "npu_conv_transpose3d_backward(Tensor input, Tensor grad_output, Tensor weight, int[] padding, "
    "int[] output_padding, int[] stride, int[] dilation, int groups, bool[3] output_mask) "
    "-> (Tensor, Tensor, Tensor)"
)
class NpuConvTranspose3dBackward:
    """Gradients of a transposed convolution of three dimensions.

    Args:
        input: as given to the transposed convolution, (N, C, T, H, W).
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

    def check(
        input, grad_output, weight, padding, output_padding, stride, dilation, groups, output_mask
    ):
        conv.check_transposed(
            input, weight, None, padding, output_padding, stride, dilation, groups, (5, 5)
        )
        sizes = conv.transposed_sizes(input, weight, padding, output_padding, stride, dilation)
        conv.check_gradients(input, "grad_output", grad_output, weight.shape[1] * groups, sizes)

    def kernel(
        input, grad_output, weight, padding, output_padding, stride, dilation, groups, output_mask
    ):
        return conv.gradients(
            grad_output,
            input,
            weight,
            stride,
            padding,
            dilation,
            output_padding,
            groups,
            output_mask,
        )

    def meta(
        input, grad_output, weight, padding, output_padding, stride, dilation, groups, output_mask
    ):
        return conv.gradient_shapes(input, weight, grad_output, output_mask)

    samples = [
        Sample(
            lambda make: (
                make(1, 2, 3, 4, 3),
                make(1, 3, 4, 4, 7),
                make(2, 3, 2, 3, 2),
                [0, 1, 0],
                [0, 0, 1],
                [1, 1, 2],
                [1, 1, 1],
                1,
                [True, True, False],
            )
        ),
    ]
