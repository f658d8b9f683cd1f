"""The parts of an operator that the convolutions share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torch_npu.ops._registry import Sample
from torch_npu.ops.conv import _convolution as conv

Part = Callable[..., Any]

#: the options of a plain and of a transposed convolution, in the order of the gradients' schemas
PLAIN = ("stride", "padding", "dilation", "groups")
TRANSPOSED = ("padding", "output_padding", "stride", "dilation", "groups")

#: a transposed convolution in the plane, and its gradients
TRANSPOSED_PLANE = Sample(
    lambda make: (
        *(make(2, 4, 5, 4), make(4, 3, 3, 3), make(6)),
        *([1, 1], [1, 0], [2, 1], [1, 2], 2),
    )
)
TRANSPOSED_PLANE_GRADIENTS = Sample(
    lambda make: (
        *(make(2, 4, 5, 4), make(2, 6, 10, 6), make(4, 3, 3, 3)),
        *([1, 1], [1, 0], [2, 1], [1, 2], 2, [True, True, True]),
    )
)


def plain_check(ranks: tuple[int, int]) -> Part:
    """`check` of a convolution whose input has `ranks` (lowest, highest) dimensions."""

    def check(input, weight, bias, stride, padding, dilation, groups):
        lists = (stride, padding, dilation)
        conv.check_plain(input, weight, bias, *lists, groups, ranks, casts=True)

    return check


def plain_meta(input, weight, stride, padding, dilation):
    return conv.plain_shape(input, weight, stride, padding, dilation)


def transposed_check(ranks: tuple[int, int]) -> Part:
    """`check` of a transposed convolution whose input has `ranks` dimensions."""

    def check(input, weight, bias, padding, output_padding, stride, dilation, groups):
        conv.check_transposed(
            input, weight, bias, padding, output_padding, stride, dilation, groups, ranks
        )

    return check


def transposed_meta(input, weight, padding, output_padding, stride, dilation, groups):
    return conv.transposed_shape(input, weight, padding, output_padding, stride, dilation, groups)


def backward_by(gradients: str, options: tuple[str, ...]) -> Part:
    """`backward` by the named operator of the gradients."""

    def backward(grad, *, needs, **arguments):
        operator = getattr(torch.ops.npu, gradients)
        mask = [needs["input"], needs["weight"], needs["bias"]]
        given = (arguments[name] for name in options)
        x = arguments["input"]
        found = operator(x, grad, arguments["weight"].to(x.dtype), *given, mask)
        return conv.named(arguments, found)

    return backward


# --- the operators of the gradients ---------------------------------------------------------------------


def plain_gradients_check(ranks: tuple[int, int], name: str = "grad_output") -> Part:
    """`check` of the gradients of a convolution; `name` is that of the result's gradient."""

    def check(input, grad_output, weight, stride, padding, dilation, groups):
        conv.check_plain(input, weight, None, stride, padding, dilation, groups, ranks)
        sizes = conv.plain_sizes(input, weight, stride, padding, dilation)
        conv.check_gradients(input, name, grad_output, weight.shape[0], sizes)

    return check


def plain_gradients(input, grad_output, weight, stride, padding, dilation, groups, output_mask):
    return conv.gradients(
        grad_output, input, weight, stride, padding, dilation, None, groups, output_mask
    )


def transposed_gradients_check(ranks: tuple[int, int], name: str = "grad_output") -> Part:
    """`check` of the gradients of a transposed convolution."""

    def check(input, grad_output, weight, padding, output_padding, stride, dilation, groups):
        conv.check_transposed(
            input, weight, None, padding, output_padding, stride, dilation, groups, ranks
        )
        sizes = conv.transposed_sizes(input, weight, padding, output_padding, stride, dilation)
        conv.check_gradients(input, name, grad_output, weight.shape[1] * groups, sizes)

    return check


def transposed_gradients(
    input, grad_output, weight, padding, output_padding, stride, dilation, groups, output_mask
):
    lists = (stride, padding, dilation, output_padding)
    return conv.gradients(grad_output, input, weight, *lists, groups, output_mask)


def gradients_meta(input, grad_output, weight, output_mask):
    """`meta` of the gradients of either."""
    return conv.gradient_shapes(input, weight, grad_output, output_mask)


def rounded(part: Part) -> Part:
    """The part with the gradient of the weight in the weight's dtype instead of float32."""

    @functools.wraps(part)
    def run(input, grad, weight, *options):
        return conv.in_weight_dtype(part(input, grad, weight, *options), weight)

    return run
