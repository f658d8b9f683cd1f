"""_npu_quantize_per_tensor: division by a scale, an offset, int8."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _atb_rules as rules


@npu_op(
    "atb::_npu_quantize_per_tensor(Tensor x, Tensor scale, Tensor zero_point, Tensor(a!) y) -> ()",
    ge="Elewise",
)
def _npu_quantize_per_tensor(x, scale, zero_point, y):
    r"""Quantizes to int8 and writes the result into `y`.

    $$ y = \mathrm{clamp}(\mathrm{round}(x / scale) + zero\_point, -128, 127) $$

    Args:
        x: float16 or bfloat16.
        scale: the dtype of `x`, broadcast to `x`.
        zero_point: int8, the shape of `scale`; empty for none.
        y: int8, the shape of `x`, written.

    Returns:
        Nothing.
    """
    value = (x.float() / scale.float()).round()
    if zero_point.numel():
        value = value + zero_point.float()
    y.copy_(value.clamp(-128, 127).to(torch.int8))


@_npu_quantize_per_tensor.check
def _(x, scale, zero_point, y):
    rules.family("x", "A2", "A3", "A5", "310P", "910A")
    for name, tensor in (("x", x), ("scale", scale), ("zero_point", zero_point), ("y", y)):
        must.hold(
            tensor.dim() <= 8,
            name,
            "of at most 8 dimensions",
            tensor.dim(),
            upstream=f"ATB tensor supports at most 8 dimensions, but got {tensor.dim()}",
        )
    must.dtype("x", x, *rules.FLOATS)
    must.same_dtype("scale", scale, "x", x)
    must.dtype("zero_point", zero_point, torch.int8)
    must.dtype("y", y, torch.int8)
    must.shape("y", y, tuple(x.shape))
    rules.written("y", y)
    fits = scale.dim() <= x.dim() and all(
        n in (1, m) for n, m in zip(reversed(scale.shape), reversed(x.shape), strict=False)
    )
    must.hold(fits, "scale", f"broadcast to {tuple(x.shape)}, the shape of 'x'", tuple(scale.shape))
    if zero_point.numel():
        must.shape("zero_point", zero_point, tuple(scale.shape))


@_npu_quantize_per_tensor.meta
def _():
    return None


_npu_quantize_per_tensor.samples = [
    Sample(
        lambda make: (
            make(3, 8, dtype=torch.float16, low=-9, high=9),
            make(8, dtype=torch.float16, low=0.05, high=1),
            make(8, dtype=torch.int8, low=-9, high=9),
            make(3, 8, dtype=torch.int8, low=0, high=1),
        )
    ),
    Sample(
        lambda make: (
            make(2, 3, 8, dtype=torch.bfloat16, low=-9, high=9),
            make(1, dtype=torch.bfloat16, low=0.05, high=1),
            make(1, dtype=torch.int8, low=-9, high=9),
            make(2, 3, 8, dtype=torch.int8, low=0, high=1),
        )
    ),
]
