"""Convolutions written from their definitions: one loop over the places of the kernel and the result."""

import itertools

import torch

from tests.ops.support import make


def on_host(args, dtype=torch.float64):
    """The arguments with their tensors on the CPU, in the reference's precision."""
    return [a.detach().cpu().to(dtype) if isinstance(a, torch.Tensor) else a for a in args]


def places(sizes):
    return itertools.product(*(range(s) for s in sizes))


def convolve(x, weight, bias, stride, padding, dilation, groups):
    """y[n, o, p] = sum over c, k of weight[o, c, k] * x[n, c, p * stride - padding + k * dilation]."""
    dims, kernel = x.dim() - 2, weight.shape[2:]
    sizes = [
        (x.shape[2 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(dims)
    ]
    per_out, per_in = weight.shape[0] // groups, weight.shape[1]
    y = x.new_zeros((x.shape[0], weight.shape[0], *sizes))
    for spot in places(sizes):
        for tap in places(kernel):
            at = [spot[i] * stride[i] - padding[i] + tap[i] * dilation[i] for i in range(dims)]
            if any(not 0 <= at[i] < x.shape[2 + i] for i in range(dims)):
                continue
            for o in range(weight.shape[0]):
                first = o // per_out * per_in
                pixels = x[(slice(None), slice(first, first + per_in), *at)]
                y[(slice(None), o, *spot)] += pixels @ weight[(o, slice(None), *tap)]
    return y if bias is None else y + bias.reshape(1, -1, *[1] * dims)


def scatter(x, weight, bias, padding, output_padding, stride, dilation, groups):
    """The transposed convolution: every pixel adds a kernel to the result at p * stride - padding."""
    dims, kernel = x.dim() - 2, weight.shape[2:]
    sizes = [
        (x.shape[2 + i] - 1) * stride[i]
        - 2 * padding[i]
        + dilation[i] * (kernel[i] - 1)
        + output_padding[i]
        + 1
        for i in range(dims)
    ]
    per_in, per_out = x.shape[1] // groups, weight.shape[1]
    y = x.new_zeros((x.shape[0], per_out * groups, *sizes))
    for spot in places(x.shape[2:]):
        for tap in places(kernel):
            at = [spot[i] * stride[i] - padding[i] + tap[i] * dilation[i] for i in range(dims)]
            if any(not 0 <= at[i] < sizes[i] for i in range(dims)):
                continue
            for c in range(x.shape[1]):
                first = c // per_in * per_out
                pixel = x[(slice(None), c, *spot)]
                filters = weight[(c, slice(None), *tap)]
                y[(slice(None), slice(first, first + per_out), *at)] += pixel[:, None] * filters
    return y if bias is None else y + bias.reshape(1, -1, *[1] * dims)


def arguments(case, dtype=torch.float32, bias=True, transposed=False, **options):
    """The arguments of a case (shapes of input and weight, then plain ones), drawn; `groups` stands last."""
    x, weight, *rest = case
    channels = weight[1] * rest[-1] if transposed else weight[0]
    offsets = make(channels, dtype=dtype, **options) if bias else None
    return make(*x, dtype=dtype, **options), make(*weight, dtype=dtype, **options), offsets, *rest
