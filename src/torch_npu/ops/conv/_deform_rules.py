"""The constraints of npu_deformable_conv2d and its backward operator, and the dtype of their results."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops.conv import _deform

#: limits of the card's operator
_MAX_TAPS, _MAX_PRODUCTS, _MAX_PIXELS = 2048, 65535, 2**31 - 1


def _four(name: str, values: Sequence[int]) -> None:
    must.hold(len(values) == 4, name, "a list of 4 integers", list(values), ErrCode.PARAM)
    must.hold(min(values) >= 1, name, "positive", list(values))
    must.hold(values[0] == values[1] == 1, name, "1 in the N and C dimensions", list(values))


def kind(input: torch.Tensor) -> torch.dtype:
    """What the results come in: float32, on Ascend950 the dtype of `input`."""
    if input.dtype == torch.float64 or chips.current().family == "A5":
        return input.dtype
    return torch.float32


def _check_dtypes(tensors: dict[str, torch.Tensor | None], modulated: bool) -> None:
    if chips.current().family == "A5":
        input = tensors["input"]
        assert input is not None  # required by the schema
        must.dtype("input", input, torch.float32, torch.float16, torch.bfloat16)
        for name, tensor in tensors.items():
            must.same_dtype(name, tensor, "input", input)
        must.hold(modulated, "modulated", "True on Ascend950", modulated, ErrCode.NOT_SUPPORT)
        return
    for name, tensor in tensors.items():
        if tensor is not None:
            fits = tensor.dtype != torch.float64 and not tensor.is_complex()
            must.hold(fits, name, "of a type that float32 can carry", tensor.dtype, ErrCode.TYPE)


def check(
    input, weight, offset, bias, kernel_size, stride, padding, dilation, groups, parts, modulated
) -> tuple[int, int]:
    tensors = (("input", input), ("weight", weight), ("offset", offset))
    for name, tensor in tensors:
        must.ndim(name, tensor, 4)
        must.hold(tensor.numel() > 0, name, "not empty", tuple(tensor.shape), ErrCode.PARAM)
    _check_dtypes({**dict(tensors), "bias": bias}, modulated)
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
    must.hold(taps <= _MAX_TAPS, "kernel_size", f"at most {_MAX_TAPS} elements", list(kernel_size))
    products = taps * (channels // groups)
    limit = f"at most {_MAX_PRODUCTS} elements times channels per group"
    must.hold(products <= _MAX_PRODUCTS, "kernel_size", limit, products)
    pixels = input.shape[2] * input.shape[3]
    must.hold(pixels <= _MAX_PIXELS, "input", f"of at most {_MAX_PIXELS} pixels", pixels)
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
