"""npu_convolution and npu_convolution_backward: a convolution of two or three dimensions."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.conv import _convolution as conv
from torch_npu.ops.conv import _definitions as parts

_RANKS = (4, 5)


@npu_op(
    "npu_convolution(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, int groups) -> Tensor",
    product=True,
    aclop=True,
)
def npu_convolution(input, weight, bias, stride, padding, dilation, groups):
    r"""A convolution over several input planes, of two or three dimensions by the rank of `input`.

    $$ y[n, o] = \mathrm{bias}[o] + \sum_c \mathrm{weight}[o, c] \star \mathrm{input}[n, c] $$

    Args:
        input: (N, C, H, W) or (N, C, T, H, W); float16, float32, or bfloat16 where the chip has it.
        weight: (O, C / groups, kH, kW), of the dtype of `input`, or (O, C / groups, kT, kH, kW), cast to it.
        bias: (O,), or None.
        stride: the step of the kernel in each spatial dimension.
        padding: the zeros on either side of each dimension.
        dilation: the distance between the elements of the kernel.
        groups: into how many groups the channels fall; C and O must be multiples.

    Returns:
        y of shape (N, O, ...) in the dtype of `input`; products are added in fp32 and rounded once.

    Constraints:
        Of a list longer than the number of spatial dimensions the first ones count.
    """
    return conv.plain(input, weight, bias, stride, padding, dilation, groups)


npu_convolution.check(parts.plain_check(_RANKS))
npu_convolution.meta(parts.plain_meta)
npu_convolution.backward(parts.backward_by("npu_convolution_backward", parts.PLAIN))
npu_convolution.samples = [
    Sample(lambda make: (make(2, 4, 7, 6), make(6, 2, 3, 3), make(6), [1, 2], [1, 0], [1, 2], 2)),
    Sample(
        lambda make: (
            make(1, 2, 4, 5, 6),
            make(3, 2, 2, 3, 3),
            None,
            [1, 1, 2],
            [1, 1, 0],
            [1, 1, 1],
            1,
        )
    ),
]


@npu_op(
    "npu_convolution_backward(Tensor input, Tensor grad_output, Tensor weight, int[] stride, "
    "int[] padding, int[] dilation, int groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
    product=True,
    aclop=True,
)
def npu_convolution_backward(
    input, grad_output, weight, stride, padding, dilation, groups, output_mask
):
    """Gradients of `npu_convolution`.

    Args:
        input: as given to `npu_convolution`.
        grad_output: the gradient of its result.
        weight: as given.
        stride: as given.
        padding: as given.
        dilation: as given.
        groups: as given.
        output_mask: which of the three gradients are wanted; the others are None.

    Returns:
        The gradients of `input` and `weight` in their dtypes, and of the bias in that of
        `grad_output`.
    """
    return parts.rounded(parts.plain_gradients)(
        input, grad_output, weight, stride, padding, dilation, groups, output_mask
    )


npu_convolution_backward.check(parts.plain_gradients_check(_RANKS))
npu_convolution_backward.meta(parts.rounded(parts.gradients_meta))
npu_convolution_backward.samples = [
    Sample(
        lambda make: (
            make(1, 2, 5, 6, dtype=torch.float16),
            make(1, 3, 4, 4, dtype=torch.float16),
            make(3, 2, 2, 3, dtype=torch.float16),
            [1, 1],
            [0, 0],
            [1, 1],
            1,
            [True, True, True],
        )
    ),
    Sample(
        lambda make: (
            make(1, 2, 4, 5, 6),
            make(1, 3, 5, 5, 2),
            make(3, 2, 2, 3, 3),
            [1, 1, 2],
            [1, 1, 0],
            [1, 1, 1],
            1,
            [False, True, False],
        )
    ),
]
