"""npu_convolution_transpose and its backward operators: two or three dimensions, by the input."""

from __future__ import annotations

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.conv import _convolution as conv
from torch_npu.ops.conv import _definitions as parts

_RANKS = (4, 5)
_check_gradients = parts.transposed_gradients_check(_RANKS, "grad")

#: the gradients of a transposed convolution in space
_SPACE_GRADIENTS = Sample(
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
)


@npu_op(
    "npu_convolution_transpose(Tensor input, Tensor weight, Tensor? bias, int[] padding, "
    "int[] output_padding, int[] stride, int[] dilation, int groups) -> Tensor",
    product=True,
    aclop=True,
)
def npu_convolution_transpose(
    input, weight, bias, padding, output_padding, stride, dilation, groups
):
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
        `output_padding` is smaller than the stride or the dilation. Of a list longer than the
        number of spatial dimensions the first ones count.
    """
    return conv.transposed(input, weight, bias, padding, output_padding, stride, dilation, groups)


npu_convolution_transpose.check(parts.transposed_check(_RANKS))
npu_convolution_transpose.meta(parts.transposed_meta)
npu_convolution_transpose.backward(
    parts.backward_by("npu_convolution_transpose_backward", parts.TRANSPOSED)
)
npu_convolution_transpose.samples = [
    parts.TRANSPOSED_PLANE,
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
    "-> (Tensor, Tensor, Tensor)",
    product=True,
    aclop=True,
)
def npu_convolution_transpose_backward(
    input, grad, weight, padding, output_padding, stride, dilation, groups, grad_input_mask
):
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
    options = (padding, output_padding, stride, dilation, groups, grad_input_mask)
    return parts.rounded(parts.transposed_gradients)(input, grad, weight, *options)


@npu_convolution_transpose_backward.check
def _(input, grad, weight, padding, output_padding, stride, dilation, groups):
    _check_gradients(input, grad, weight, padding, output_padding, stride, dilation, groups)


@npu_convolution_transpose_backward.meta
def _(input, grad, weight, grad_input_mask):
    return parts.rounded(parts.gradients_meta)(input, grad, weight, grad_input_mask)


npu_convolution_transpose_backward.samples = [
    parts.TRANSPOSED_PLANE_GRADIENTS,
    _SPACE_GRADIENTS,
]


@npu_op(
    "npu_conv_transpose3d_backward(Tensor input, Tensor grad_output, Tensor weight, int[] padding, "
    "int[] output_padding, int[] stride, int[] dilation, int groups, bool[3] output_mask) "
    "-> (Tensor, Tensor, Tensor)",
    product=True,
    aclop=True,
)
def npu_conv_transpose3d_backward(
    input, grad_output, weight, padding, output_padding, stride, dilation, groups, output_mask
):
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
    return parts.transposed_gradients(
        input, grad_output, weight, padding, output_padding, stride, dilation, groups, output_mask
    )


npu_conv_transpose3d_backward.check(parts.transposed_gradients_check((5, 5)))
npu_conv_transpose3d_backward.meta(parts.gradients_meta)
npu_conv_transpose3d_backward.samples = [
    _SPACE_GRADIENTS,
]
