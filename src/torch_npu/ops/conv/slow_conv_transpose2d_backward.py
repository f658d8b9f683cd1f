"""slow_conv_transpose2d_backward: gradients of a transposed convolution in the plane."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.conv import _convolution as conv


@npu_op(
    "slow_conv_transpose2d_backward(Tensor grad_output, Tensor self, Tensor weight, "
    "int[2] kernel_size, int[2] stride, int[2] padding, int[2] output_padding, "
    "int[2] dilation, bool[3] output_mask) "
    "-> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)",
    product=True,
)
def slow_conv_transpose2d_backward(
    grad_output, self, weight, stride, padding, output_padding, dilation, output_mask
):
    """Gradients of torch's slow_conv_transpose2d.

    Args:
        grad_output: the gradient of the result.
        self: the input, (N, C, H, W).
        weight: (C, O, kH, kW).
        kernel_size: (kH, kW), as in `weight`.
        stride: the step of the kernel.
        padding: what `dilation * (kernel - 1)` zeros on either side are reduced by.
        output_padding: what was added to one side of the result.
        dilation: the distance between the elements of the kernel.
        output_mask: which of the three gradients are wanted; the others are None.

    Returns:
        The gradients of the input and the weight in their dtypes, and of the bias in that of
        `grad_output`.
    """
    found = conv.gradients(
        grad_output, self, weight, stride, padding, dilation, output_padding, 1, output_mask
    )
    return conv.in_weight_dtype(found, weight)


@slow_conv_transpose2d_backward.check
def _(grad_output, self, weight, kernel_size, stride, padding, output_padding, dilation):
    conv.check_transposed(
        self, weight, None, padding, output_padding, stride, dilation, 1, (4, 4), "self"
    )
    must.shape("weight", weight, (None, None, *kernel_size))
    sizes = conv.transposed_sizes(self, weight, padding, output_padding, stride, dilation)
    conv.check_gradients(self, "grad_output", grad_output, weight.shape[1], sizes)


@slow_conv_transpose2d_backward.meta
def _(grad_output, self, weight, output_mask):
    found = conv.gradient_shapes(self, weight, grad_output, output_mask)
    return conv.in_weight_dtype(found, weight)


slow_conv_transpose2d_backward.samples = [
    Sample(
        lambda make: (
            *(make(2, 3, 10, 6), make(2, 4, 5, 4), make(4, 3, 3, 3)),
            *([3, 3], [2, 1], [1, 1], [1, 0], [1, 2], [True, True, True]),
        )
    )
]
