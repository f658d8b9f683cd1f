"""npu_deformable_conv2d and npu_deformable_conv2dbk: convolution over freely shifted points."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.conv import _convolution as conv
from torch_npu.ops.conv import _deform
from torch_npu.ops.conv._deform import Window

#: limits of the card's operator
_MOST_TAPS, _MOST_PRODUCTS, _MOST_PIXELS = 2048, 65535, 2**31 - 1


def _four(name: str, values: Sequence[int]) -> None:
    must.hold(len(values) == 4, name, "a list of 4 integers", list(values), ErrCode.PARAM)
    must.hold(min(values) >= 1, name, "positive", list(values))
    must.hold(values[0] == values[1] == 1, name, "1 in the N and C dimensions", list(values))


def _check(
    input, weight, offset, bias, kernel_size, stride, padding, dilation, groups, parts, modulated
) -> tuple[int, int]:
    tensors = (("input", input), ("weight", weight), ("offset", offset))
    for name, tensor in tensors:
        must.ndim(name, tensor, 4)
        must.hold(tensor.numel() > 0, name, "not empty", tuple(tensor.shape), ErrCode.PARAM)
    for name, tensor in (*tensors, ("bias", bias)):
        if tensor is not None:
            fits = tensor.dtype != torch.float64 and not tensor.is_complex()
            must.hold(fits, name, "of a type that float32 can carry", tensor.dtype, ErrCode.TYPE)
    _four("stride", stride)
    _four("dilation", dilation)
    must.hold(len(padding) == 4, "padding", "a list of 4 integers", list(padding), ErrCode.PARAM)
    must.hold(min(padding) >= 0, "padding", "not negative", list(padding))
    must.hold(groups >= 1, "groups", "positive", groups)
    must.hold(parts >= 1, "deformable_groups", "positive", parts)
    two = "a list of 2 integers"
    must.hold(len(kernel_size) == 2, "kernel_size", two, list(kernel_size), ErrCode.PARAM)
    channels, taps = input.shape[1], kernel_size[0] * kernel_size[1]
    must.hold(min(kernel_size) >= 1, "kernel_size", "positive", list(kernel_size))
    must.hold(
        taps <= _MOST_TAPS, "kernel_size", f"at most {_MOST_TAPS} elements", list(kernel_size)
    )
    products = taps * (channels // groups)
    limit = f"at most {_MOST_PRODUCTS} elements times channels per group"
    must.hold(products <= _MOST_PRODUCTS, "kernel_size", limit, products)
    pixels = input.shape[2] * input.shape[3]
    must.hold(pixels <= _MOST_PIXELS, "input", f"of at most {_MOST_PIXELS} pixels", pixels)
    must.hold(channels % groups == 0, "groups", f"a divisor of {channels} channels", groups)
    must.hold(
        channels % parts == 0, "deformable_groups", f"a divisor of {channels} channels", parts
    )
    must.shape("weight", weight, (None, channels // groups, *kernel_size))
    divides = weight.shape[0] % groups == 0
    must.hold(divides, "groups", f"a divisor of {weight.shape[0]} filters", groups)
    must.shape("bias", bias, (weight.shape[0],))
    out = _deform.sizes(input, kernel_size, stride, padding, dilation)
    expected = f"large enough for the kernel {list(kernel_size)}"
    must.hold(min(out) > 0, "input", expected, tuple(input.shape), ErrCode.PARAM)
    depth = parts * taps * (3 if modulated else 2)
    must.shape("offset", offset, (input.shape[0], depth, *out))
    return out


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
        The result (N, O, outH, outW) and the values read, (N, C, outH * kH, outW * kW), both float32.
        No gradient flows through the latter.

    Constraints:
        No tensor is empty; kH * kW <= 2048; kH * kW * C / groups <= 65535; H * W < 2^31.

    Differs from upstream:
        Between -1 and 0 the interpolation takes the pixels at the floor of the coordinate, as
        upstream's operator does; upstream's page writes a truncation.
    """
    window = Window.of(kernel_size, stride, padding, dilation, deformable_groups, modulated)
    read = _deform.sample(wide(input), wide(offset), window)
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
    _check(
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
    exact = torch.float64 if input.dtype == torch.float64 else torch.float32
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
        The gradients of `input`, `weight`, `offset` and the bias, all float32. A point that lies a
        pixel or more outside the image passes nothing to `offset`.
    """
    window = Window.of(kernel_size, stride, padding, dilation, deformable_groups, modulated)
    d_read, d_weight, d_bias = conv.gradients(
        wide(grad_output),
        wide(offset_out),
        weight,
        kernel_size,
        [0, 0],
        [1, 1],
        None,
        groups,
        [True, True, True],
    )
    assert d_read is not None  # asked for
    d_input, d_offset = _deform.sample_gradients(d_read, wide(input), wide(offset), window)
    return d_input, d_weight, d_offset, d_bias


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
    high, broad = _check(
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
    must.shape("grad_output", grad_output, (input.shape[0], weight.shape[0], high, broad))
    read = (*input.shape[:2], high * kernel_size[0], broad * kernel_size[1])
    must.shape("offset_out", offset_out, read)


@npu_deformable_conv2dbk.meta
def _(input, weight, offset):
    exact = torch.float64 if input.dtype == torch.float64 else torch.float32
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
