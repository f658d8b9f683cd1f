"""npu_gelu_mul: the GELU of one half of a tensor times the other half."""

from __future__ import annotations

import math

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import fits
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._floats import vector_floats
from torch_npu.ops.activation.npu_gelu import APPROXIMATIONS

MAX_LAST, MAX_OTHERS = 1024, 200000


@npu_op("npu_gelu_mul(Tensor input, *, str approximate='none') -> Tensor", compiled="fuse")
def npu_gelu_mul(input, approximate):
    r"""Splits the last dimension into halves: $y = \mathrm{gelu}(x_1) \cdot x_2$.

    Args:
        input: 2 to 8 dimensions, the last even and at most 1024, the product of the others at most
            200000; float16, float32, and bfloat16 but on Atlas training and inference series.
        approximate: "none" for the error function, "tanh" for its approximation, as in `npu_gelu`.

    Returns:
        y, of the dtype of `input` and half its size in the last dimension.
    """
    a, b = wide(input).chunk(2, -1)
    y = torch.nn.functional.gelu(a, approximate=approximate) * b
    return y.to(input.dtype).contiguous()


@npu_gelu_mul.check
def _(input, approximate):
    must.dtype("input", input, *vector_floats())
    must.ndim("input", input, 2, 8)
    must.choice("approximate", approximate, APPROXIMATIONS)
    shape = tuple(input.shape)
    must.hold(
        shape[-1] % 2 == 0 and 0 < shape[-1] <= MAX_LAST,
        "input",
        f"of an even last dimension up to {MAX_LAST}",
        shape,
    )
    must.hold(
        math.prod(shape[:-1]) <= MAX_OTHERS,
        "input",
        f"of leading dimensions with a product up to {MAX_OTHERS}",
        shape,
    )


@npu_gelu_mul.native
def _(input, approximate):
    if not fits(input):
        return NotImplemented
    return torch.ops.softnpu.gelu_mul(input, approximate == "tanh")


npu_gelu_mul.samples = [
    Sample(lambda make: (make(4, 32, low=-4, high=4),)),
    Sample(lambda make: (make(2, 3, 10, dtype=torch.float16),), {"approximate": "tanh"}),
]
