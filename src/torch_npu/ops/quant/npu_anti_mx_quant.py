"""npu_anti_mx_quant: from a microscaling format back to floats."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats, _mx

_OUTPUTS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def _source(src_type):
    return _formats.chosen(src_type, _mx.FLOAT4[0])


@npu_op(
    "npu_anti_mx_quant(Tensor x, Tensor mxscale, *, int? axis=-1, int? dst_type=15, int? src_type=292)"
    " -> Tensor",
    chips=("A5",),
)
def npu_anti_mx_quant(x, mxscale, dst_type, src_type):
    r"""Multiplies the elements of a microscaling format by the scales of their blocks of 32.

    $$ y = x \cdot 2^{e - 127} $$

    Args:
        x: 1 to 7 dimensions: float8_e4m3fn or float8_e5m2, or uint8 with two 4-bit floats each.
        mxscale: the bytes e as `npu_dynamic_mx_quant` gives them for the last axis: uint8 or float8_e8m0fnu.
        axis: the last one.
        dst_type: bfloat16 (the default), float16 or float32.
        src_type: what `x` holds: float8_e4m3fn (the default), float8_e5m2, float4_e2m1fn_x2 or float4_e1m2; None is
            float4_e2m1fn_x2.

    Returns:
        y in the shape of `x`; for 4-bit floats the last dimension is twice as long.

    Constraints:
        Ascend950.
    """
    values = _formats.decode(x, _source(src_type))
    powers = mxscale.view(torch.uint8).view(torch.float8_e8m0fnu).float()
    powers = powers.flatten(-2).repeat_interleave(_mx.BLOCK, -1)[..., : values.shape[-1]]
    return (values * powers).to(_OUTPUTS[_formats.chosen(dst_type, "bfloat16")])


@npu_anti_mx_quant.check
def _(x, mxscale, axis, dst_type, src_type):
    must.ndim("x", x, 1, 7)
    _formats.check("src_type", src_type, *_mx.FLOAT8, *_mx.FLOAT4)
    _formats.check("dst_type", dst_type, *_OUTPUTS)
    source = _source(src_type)
    stored = torch.uint8 if source in _mx.FLOAT4 else getattr(torch, source)
    must.hold(x.dtype == stored, "x", f"of dtype {stored} for {source}", x.dtype, ErrCode.TYPE)
    must.choice("axis", -1 if axis is None else axis, (-1, x.dim() - 1))
    must.dtype("mxscale", mxscale, torch.uint8, torch.float8_e8m0fnu)
    width = x.shape[-1] * _formats.per_item(source)
    must.shape("mxscale", mxscale, (*x.shape[:-1], _mx.pairs(width), _mx.PAIR))


def _bytes(make, *shape):
    return make(*shape, dtype=torch.uint8, low=120, high=134)


npu_anti_mx_quant.samples = [
    Sample(
        lambda make: (make(3, 35, dtype=torch.uint8, low=0, high=256), _bytes(make, 3, 2, 2)),
        {"src_type": _dtypes.CODES["float4_e2m1fn_x2"]},
    ),
    Sample(
        lambda make: (make(3, 32, dtype=torch.uint8, low=0, high=256), _bytes(make, 3, 1, 2)),
        {"src_type": _dtypes.CODES["float4_e1m2fn_x2"], "dst_type": torch.float32},
    ),
]
