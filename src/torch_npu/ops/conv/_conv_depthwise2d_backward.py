"""_conv_depthwise2d_backward: gradients of a convolution of each channel by itself."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.conv import _convolution as conv


@npu_op(
    "_conv_depthwise2d_backward(Tensor grad_output, Tensor self, Tensor weight, "
    "int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool[2] output_mask) "
    "-> (Tensor grad_input, Tensor grad_weight)",
    product=True,
)
def _conv_depthwise2d_backward(grad_output, self, weight, stride, padding, dilation, output_mask):
    """Gradients of torch's _conv_depthwise2d.

    Args:
        grad_output: the gradient of the result.
        self: the input, (N, C, H, W).
        weight: (C * M, 1, kH, kW), M filters a channel.
        kernel_size: (kH, kW), as in `weight`.
        stride: the step of the kernel.
        padding: the zeros on either side of each dimension.
        dilation: the distance between the elements of the kernel.
        output_mask: which of the two gradients are wanted; the other is None.

    Returns:
        The gradients of the input and the weight in their dtypes.
    """
    mask = [*output_mask, False]
    found = conv.gradients(
        grad_output, self, weight, stride, padding, dilation, None, self.shape[1], mask
    )
    return conv.in_weight_dtype(found, weight)[:2]


@_conv_depthwise2d_backward.check
def _(grad_output, self, weight, kernel_size, stride, padding, dilation):
    must.ndim("self", self, 4)
    must.shape("weight", weight, (None, 1, *kernel_size))
    channels = self.shape[1]
    conv.check_plain(self, weight, None, stride, padding, dilation, channels, (4, 4), "self")
    sizes = conv.plain_sizes(self, weight, stride, padding, dilation)
    conv.check_gradients(self, "grad_output", grad_output, weight.shape[0], sizes)


@_conv_depthwise2d_backward.meta
def _(grad_output, self, weight, output_mask):
    found = conv.gradient_shapes(self, weight, grad_output, [*output_mask, False])
    return conv.in_weight_dtype(found, weight)[:2]


_conv_depthwise2d_backward.samples = [
    Sample(
        lambda make: (
            *(make(2, 6, 5, 4), make(2, 3, 5, 4), make(6, 1, 3, 3)),
            *([3, 3], [1, 1], [1, 1], [1, 1], [True, True]),
        )
    )
]
