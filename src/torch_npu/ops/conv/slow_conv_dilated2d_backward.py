"""slow_conv_dilated2d_backward: gradients of a dilated convolution in the plane."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.conv import _convolution as conv


@npu_op(
    "slow_conv_dilated2d_backward(Tensor grad_output, Tensor self, Tensor weight, "
    "int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool[3] output_mask) "
    "-> (Tensor grad_input, Tensor grad_weight, Tensor grad_bias)",
    product=True,
)
def slow_conv_dilated2d_backward(grad_output, self, weight, stride, padding, dilation, output_mask):
    """Gradients of torch's slow_conv_dilated2d.

    Args:
        grad_output: the gradient of the result.
        self: the input, (N, C, H, W).
        weight: (O, C, kH, kW).
        kernel_size: (kH, kW), as in `weight`.
        stride: the step of the kernel.
        padding: the zeros on either side of each dimension.
        dilation: the distance between the elements of the kernel.
        output_mask: which of the three gradients are wanted; the others are None.

    Returns:
        The gradients of the input and the weight in their dtypes, and of the bias in that of
        `grad_output`.
    """
    found = conv.gradients(
        grad_output, self, weight, stride, padding, dilation, None, 1, output_mask
    )
    return conv.in_weight_dtype(found, weight)


@slow_conv_dilated2d_backward.check
def _(grad_output, self, weight, kernel_size, stride, padding, dilation):
    conv.check_plain(self, weight, None, stride, padding, dilation, 1, (4, 4), "self")
    must.shape("weight", weight, (None, None, *kernel_size))
    sizes = conv.plain_sizes(self, weight, stride, padding, dilation)
    conv.check_gradients(self, "grad_output", grad_output, weight.shape[0], sizes)


@slow_conv_dilated2d_backward.meta
def _(grad_output, self, weight, output_mask):
    found = conv.gradient_shapes(self, weight, grad_output, output_mask)
    return conv.in_weight_dtype(found, weight)


slow_conv_dilated2d_backward.samples = [
    Sample(
        lambda make: (
            *(make(2, 3, 5, 4), make(2, 4, 7, 6), make(3, 4, 3, 3)),
            *([3, 3], [1, 1], [1, 1], [2, 2], [True, True, True]),
        )
    )
]
