"""npu_deformable_conv2d and npu_deformable_conv2dbk: convolution over freely shifted points."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.conv import _convolution as conv
from torch_npu.ops.conv import _deform
from torch_npu.ops.conv import _deform_rules as rules
from torch_npu.ops.conv._deform import Window

_ARGUMENTS = (
    "int[2] kernel_size, int[] stride, int[] padding, int[4] dilation=[1,1,1,1], int groups=1, "
    "int deformable_groups=1, bool modulated=True"
)


@npu_op(
    "npu_deformable_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor? bias, "
    f"{_ARGUMENTS}) -> (Tensor, Tensor)",
    output_differentiability=(True, False),
    product=True,
)
def npu_deformable_conv2d(
    input,
    weight,
    offset,
    bias,
    kernel_size,
    stride,
    padding,
    dilation,
    groups,
    deformable_groups,
    modulated,
):
    r"""A convolution whose points are shifted, and with `modulated` weighted, one by one.

    The kernel element (i, j) at the result's place (h, w) reads the image at

    $$ y = h \cdot \mathrm{stride}_2 - \mathrm{padding}_0 + i \cdot \mathrm{dilation}_2 + \Delta y,
       \quad x = w \cdot \mathrm{stride}_3 - \mathrm{padding}_2 + j \cdot \mathrm{dilation}_3
       + \Delta x $$

    by bilinear interpolation between the four pixels around (y, x); pixels outside are zero. The
    value is multiplied by the point's factor, and the products with `weight` are added up.

    Args:
        input: (N, C, H, W); any type, computed in float32.
        weight: (O, C / groups, kH, kW).
        offset: (N, P * deformable_groups * kH * kW, outH, outW): all shifts along x, then all along
            y, then (with `modulated`) all factors; P is 3, or 2 without factors. Within each, the
            deformable group comes first, then the row and the column of the kernel.
        bias: (O,), or None.
        kernel_size: (kH, kW), as in `weight`.
        stride: four integers in the order N, C, H, W; the first two are 1.
        padding: pixels at the top, bottom, left and right.
        dilation: four integers like `stride`.
        groups: into how many groups the channels of `input` and the filters fall.
        deformable_groups: into how many groups the channels fall that are shifted alike.
        modulated: whether `offset` holds the factors.

    Returns:
        The result (N, O, outH, outW) and the values read, (N, C, outH * kH, outW * kW), both float32, on
        Ascend950 in the dtype of `input`. No gradient flows through the latter.

    Constraints:
        On Ascend950 all tensors are float32, all float16 or all bfloat16, and `modulated` is True.
        No tensor is empty; kH * kW <= 2048; kH * kW * C / groups <= 65535; H * W < 2^31.

    Differs from upstream:
        Between -1 and 0 the interpolation takes the pixels at the floor of the coordinate, as
        upstream's operator does; upstream's page writes a truncation.
    """
    window = Window.of(kernel_size, stride, padding, dilation, deformable_groups, modulated)
    read = _deform.sample(wide(input), wide(offset), window).to(rules.kind(input))
    return conv.plain(read, weight, bias, kernel_size, [0, 0], [1, 1], groups), read


@npu_deformable_conv2d.check
def _(
    input,
    weight,
    offset,
    bias,
    kernel_size,
    stride,
    padding,
    dilation,
    groups,
    deformable_groups,
    modulated,
):
    rules.check(
        input,
        weight,
        offset,
        bias,
        kernel_size,
        stride,
        padding,
        dilation,
        groups,
        deformable_groups,
        modulated,
    )


@npu_deformable_conv2d.meta
def _(input, weight, offset, kernel_size):
    high, broad = offset.shape[2:]
    n, c = input.shape[:2]
    exact = rules.kind(input)
    return (
        input.new_empty((n, weight.shape[0], high, broad), dtype=exact),
        input.new_empty((n, c, high * kernel_size[0], broad * kernel_size[1]), dtype=exact),
    )


@npu_deformable_conv2d.backward
def _(
    grad,
    *,
    input,
    weight,
    offset,
    bias,
    kernel_size,
    stride,
    padding,
    dilation,
    groups,
    deformable_groups,
    modulated,
    result1,
):
    found = torch.ops.npu.npu_deformable_conv2dbk(
        input,
        grad,
        result1,
        weight,
        offset,
        kernel_size,
        stride,
        padding,
        dilation,
        groups,
        deformable_groups,
        modulated,
    )
    given = {"input": input, "weight": weight, "offset": offset, "bias": bias}
    return {
        name: gradient.to(tensor.dtype)
        for (name, tensor), gradient in zip(given.items(), found, strict=True)
        if tensor is not None
    }


npu_deformable_conv2d.samples = [
    Sample(
        lambda make: (
            make(2, 4, 6, 5),
            make(3, 4, 3, 3),
            make(2, 27, 6, 5, low=-2, high=2),
            make(3),
            [3, 3],
            [1, 1, 1, 1],
            [1, 1, 1, 1],
        )
    ),
    Sample(
        lambda make: (
            make(1, 4, 7, 6),
            make(4, 2, 2, 3),
            make(1, 24, 3, 5, low=-3, high=3),
            None,
            [2, 3],
            [1, 1, 2, 1],
            [0, 1, 2, 1],
        ),
        {
            "dilation": [1, 1, 2, 2],
            "groups": 2,
            "deformable_groups": 2,
            "modulated": False,
        },
    ),
]


@npu_op(
    "npu_deformable_conv2dbk(Tensor input, Tensor grad_output, Tensor offset_out, Tensor weight, "
    f"Tensor offset, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    product=True,
)
def npu_deformable_conv2dbk(
    input,
    grad_output,
    offset_out,
    weight,
    offset,
    kernel_size,
    stride,
    padding,
    dilation,
    groups,
    deformable_groups,
    modulated,
):
    """Gradients of `npu_deformable_conv2d`.

    Args:
        input: as given to `npu_deformable_conv2d`.
        grad_output: the gradient of its first result.
        offset_out: its second result.
        weight: as given.
        offset: as given.
        kernel_size: as given.
        stride: as given.
        padding: as given.
        dilation: as given.
        groups: as given.
        deformable_groups: as given.
        modulated: as given.

    Returns:
        The gradients of `input`, `weight`, `offset` and the bias, all float32 (Ascend950: as `input`). A point that lies a
        pixel or more outside the image passes nothing to `offset`.
    """
    window = Window.of(kernel_size, stride, padding, dilation, deformable_groups, modulated)
    d_read, d_weight, d_bias = conv.gradients(
        wide(grad_output),
        wide(offset_out),
        wide(weight),
        kernel_size,
        [0, 0],
        [1, 1],
        None,
        groups,
        [True, True, True],
    )
    assert d_read is not None and d_weight is not None and d_bias is not None  # asked for
    d_input, d_offset = _deform.sample_gradients(d_read, wide(input), wide(offset), window)
    return tuple(g.to(rules.kind(input)) for g in (d_input, d_weight, d_offset, d_bias))


@npu_deformable_conv2dbk.check
def _(
    input,
    grad_output,
    offset_out,
    weight,
    offset,
    kernel_size,
    stride,
    padding,
    dilation,
    groups,
    deformable_groups,
    modulated,
):
    high, broad = rules.check(
        input,
        weight,
        offset,
        None,
        kernel_size,
        stride,
        padding,
        dilation,
        groups,
        deformable_groups,
        modulated,
    )
    if chips.current().family == "A5":
        must.same_dtype("grad_output", grad_output, "input", input)
        must.same_dtype("offset_out", offset_out, "input", input)
    must.shape("grad_output", grad_output, (input.shape[0], weight.shape[0], high, broad))
    read = (*input.shape[:2], high * kernel_size[0], broad * kernel_size[1])
    must.shape("offset_out", offset_out, read)


@npu_deformable_conv2dbk.meta
def _(input, weight, offset):
    exact = rules.kind(input)
    shapes = (input.shape, weight.shape, offset.shape, weight.shape[:1])
    return tuple(input.new_empty(shape, dtype=exact) for shape in shapes)


npu_deformable_conv2dbk.samples = [
    Sample(
        lambda make: (
            make(2, 4, 6, 5),
            make(2, 3, 6, 5),
            make(2, 4, 18, 15),
            make(3, 4, 3, 3),
            make(2, 27, 6, 5, low=-2, high=2),
            [3, 3],
            [1, 1, 1, 1],
            [1, 1, 1, 1],
        )
    )
]
