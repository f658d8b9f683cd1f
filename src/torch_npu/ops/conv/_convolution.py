"""What the convolutions share: their constraints, sizes, products and gradients.

The card's cube unit multiplies half precision into fp32 accumulators; so does this: products in fp32,
one rounding at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide

#: dimensions of (N, C, T, H, W)
SPACE = 5

Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def floats() -> tuple[torch.dtype, ...]:
    """The floats that the cube unit convolves: bfloat16 from the A2 series on."""
    older = chips.current().family in ("910A", "310P")
    return (torch.float16, torch.float32) + (() if older else (torch.bfloat16,))


def spatial(values: Sequence[int], dims: int) -> list[int]:
    """One value for each spatial dimension; upstream reads no more of the list."""
    return list(values[:dims])


def check_list(name: str, values: Sequence[int], dims: int, low: int) -> None:
    """At least `dims` integers, the first of them of at least `low`."""
    fits = len(values) >= dims
    must.hold(fits, name, f"a list of {dims} integers", list(values), ErrCode.PARAM)
    least = min(spatial(values, dims))
    must.hold(least >= low, name, f"integers of at least {low}", list(values))


def check_operands(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    ranks: tuple[int, int],
    name: str,
    casts: bool = False,
) -> int:
    """Dtypes and ranks; returns the number of spatial dimensions. `casts`: in space the weight is cast."""
    must.dtype(name, input, *floats())
    must.ndim(name, input, *ranks)
    if casts and input.dim() == SPACE:
        must.dtype("weight", weight, *floats())
    else:
        must.same_dtype("weight", weight, name, input)
    must.ndim("weight", weight, input.dim())
    must.dtype("bias", bias, *floats())
    return input.dim() - 2


def check_plain(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    ranks: tuple[int, int],
    name: str = "input",
    casts: bool = False,
) -> None:
    """The constraints of a convolution whose input has `ranks` (lowest, highest) dimensions."""
    dims = check_operands(input, weight, bias, ranks, name, casts)
    check_list("stride", stride, dims, 1)
    check_list("padding", padding, dims, 0)
    check_list("dilation", dilation, dims, 1)
    must.hold(groups >= 1, "groups", "positive", groups)
    channels = f"of {weight.shape[1] * groups} channels (weight.shape[1] * groups)"
    fits = input.shape[1] == weight.shape[1] * groups
    must.hold(fits, name, channels, tuple(input.shape), ErrCode.PARAM)
    divides = weight.shape[0] % groups == 0
    must.hold(divides, "weight", f"of a multiple of {groups} filters", tuple(weight.shape))
    must.shape("bias", bias, (weight.shape[0],))
    must.hold(min(weight.shape[2:]) > 0, "weight", "of a kernel without zero sizes", weight.shape)
    sizes = plain_sizes(input, weight, stride, padding, dilation)
    expected = f"large enough for the kernel {tuple(weight.shape[2:])}"
    must.hold(min(sizes) > 0, name, expected, tuple(input.shape), ErrCode.PARAM)


def plain_sizes(
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """The spatial sizes of a convolution's result."""
    places = zip(input.shape[2:], weight.shape[2:], stride, padding, dilation, strict=False)
    return [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in places]


def plain_shape(input, weight, stride, padding, dilation) -> torch.Tensor:
    """What a convolution returns, without its values."""
    sizes = plain_sizes(input, weight, stride, padding, dilation)
    return input.new_empty((input.shape[0], weight.shape[0], *sizes))


def plain(input, weight, bias, stride, padding, dilation, groups) -> torch.Tensor:
    """The convolution, accumulated in fp32."""
    dims = input.dim() - 2
    y = torch.convolution(
        wide(input),
        wide(weight.to(input.dtype)),
        None if bias is None else wide(bias),
        spatial(stride, dims),
        spatial(padding, dims),
        spatial(dilation, dims),
        False,
        [0] * dims,
        groups,
    )
    return y.to(input.dtype).contiguous()


def check_transposed(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    ranks: tuple[int, int],
    name: str = "input",
) -> None:
    """The constraints of a transposed convolution whose input has `ranks` dimensions."""
    dims = check_operands(input, weight, bias, ranks, name)
    check_list("padding", padding, dims, 0)
    check_list("output_padding", output_padding, dims, 0)
    check_list("stride", stride, dims, 1)
    check_list("dilation", dilation, dims, 1)
    must.hold(groups >= 1, "groups", "positive", groups)
    channels = f"of {input.shape[1]} channels ({name}.shape[1]) in its first dimension"
    fits = weight.shape[0] == input.shape[1]
    must.hold(fits, "weight", channels, tuple(weight.shape), ErrCode.PARAM)
    divides = input.shape[1] % groups == 0
    must.hold(divides, name, f"of a multiple of {groups} channels", tuple(input.shape))
    must.shape("bias", bias, (weight.shape[1] * groups,))
    for extra, step, gap in zip(output_padding, stride, dilation, strict=False):
        within = extra < step or extra < gap
        limit = "smaller than the stride or the dilation"
        must.hold(within, "output_padding", limit, list(output_padding))
    sizes = transposed_sizes(input, weight, padding, output_padding, stride, dilation)
    positive = "small enough to leave a result"
    must.hold(min(sizes) > 0, "padding", positive, list(padding), ErrCode.PARAM)
    must.countable("stride", max(sizes), list(stride))


def transposed_sizes(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """The spatial sizes of a transposed convolution's result."""
    places = zip(
        input.shape[2:], weight.shape[2:], padding, output_padding, stride, dilation, strict=False
    )
    return [(i - 1) * s - 2 * p + d * (k - 1) + e + 1 for i, k, p, e, s, d in places]


def transposed_shape(input, weight, padding, output_padding, stride, dilation, groups):
    """What a transposed convolution returns, without its values."""
    sizes = transposed_sizes(input, weight, padding, output_padding, stride, dilation)
    return input.new_empty((input.shape[0], weight.shape[1] * groups, *sizes))


def transposed(input, weight, bias, padding, output_padding, stride, dilation, groups):
    """The transposed convolution: what a plain one of the result would pass back to its input."""
    dims = input.dim() - 2
    result = transposed_shape(input, weight, padding, output_padding, stride, dilation, groups)
    y, _, _ = torch.ops.aten.convolution_backward(
        wide(input),
        wide(result),
        wide(weight),
        None,
        spatial(stride, dims),
        spatial(padding, dims),
        spatial(dilation, dims),
        False,
        [0] * dims,
        groups,
        [True, False, False],
    )
    if bias is not None:
        y = y + wide(bias).reshape(-1, *[1] * dims)
    return y.to(input.dtype).contiguous()


def check_gradients(
    input: torch.Tensor,
    grad_name: str,
    grad: torch.Tensor,
    channels: int,
    sizes: Sequence[int],
) -> None:
    """The gradient of the result has the result's shape."""
    must.dtype(grad_name, grad, *floats())
    must.shape(grad_name, grad, (input.shape[0], channels, *sizes))


def _fits(grad, input, weight, stride, padding, dilation, output_padding, groups) -> None:
    """PyTorch's gradients trust these sizes: what they read depends on them, whether constraints are checked or not."""
    for name, numbers, least in (
        ("stride", stride, 1),
        ("padding", padding, 0),
        ("dilation", dilation, 1),
    ):
        must.hold(min(numbers) >= least, name, f"at least {least}", list(numbers))
    lists = (stride, padding, dilation)
    if output_padding is None:
        sizes, channels = plain_sizes(input, weight, *lists), weight.shape[0]
    else:
        extra = spatial(output_padding, input.dim() - 2)
        sizes = transposed_sizes(input, weight, padding, extra, stride, dilation)
        channels = weight.shape[1] * groups
    must.shape("grad_output", grad, (input.shape[0], channels, *sizes))


def gradients(
    grad: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int] | None,
    groups: int,
    mask: Sequence[bool],
) -> Gradients:
    """d input (its dtype), d weight (fp32), d bias (the gradient's dtype); None where not asked for.

    `output_padding` is that of a transposed convolution, None for a plain one.
    """
    dims = input.dim() - 2
    steps, pads, dilations = (spatial(n, dims) for n in (stride, padding, dilation))
    _fits(grad, input, weight, steps, pads, dilations, output_padding, groups)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        wide(grad),
        wide(input),
        wide(weight),
        None,
        steps,
        pads,
        dilations,
        output_padding is not None,
        [0] * dims if output_padding is None else spatial(output_padding, dims),
        groups,
        [mask[0], mask[1], False],
    )
    every = [0, *range(2, grad.dim())]
    return (
        dx.to(input.dtype).contiguous() if mask[0] else None,
        dw.contiguous() if mask[1] else None,
        wide(grad).sum(every).to(grad.dtype) if mask[2] else None,
    )


def gradient_shapes(
    input: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, mask: Sequence[bool]
) -> Gradients:
    """What `gradients` returns, without its values."""
    exact = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return (
        input.new_empty(input.shape) if mask[0] else None,
        weight.new_empty(weight.shape, dtype=exact) if mask[1] else None,
        grad.new_empty((grad.shape[1],)) if mask[2] else None,
    )


def in_weight_dtype(found: Gradients, weight: torch.Tensor) -> Gradients:
    """The gradients with that of the weight rounded to the weight's dtype."""
    dx, dw, db = found
    return dx, None if dw is None else dw.to(weight.dtype), db


def named(
    arguments: dict[str, torch.Tensor | None], found: Sequence[torch.Tensor | None]
) -> dict[str, torch.Tensor | None]:
    """The three gradients by argument, in the dtypes of the arguments."""
    of = {"input": found[0], "weight": found[1], "bias": found[2]}
    for name, gradient in of.items():
        given = arguments[name]
        if gradient is not None and given is not None:
            of[name] = gradient.to(given.dtype)
    return of
