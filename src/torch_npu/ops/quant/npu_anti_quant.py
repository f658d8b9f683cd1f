"""npu_anti_quant: from quantized integers back to floats."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _formats

#: the format that a tensor of each dtype holds
_HOLDS = {
    torch.int8: "int8",
    torch.int32: "int4",
    torch.uint8: "hifloat8",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e5m2: "float8_e5m2",
}


@npu_op(
    "npu_anti_quant(Tensor x, Tensor scale, *, Tensor? offset=None, int? dst_dtype=None, "
    "int? src_dtype=None) -> Tensor",
    ge="AscendAntiQuantV2",
)
def npu_anti_quant(x, scale, offset, dst_dtype, src_dtype):
    r"""Turns quantized values back into floats.

    $$ out = (x + offset) \cdot scale $$

    Args:
        x: int8, or int32 whose elements hold eight int4 each, the first in the lowest bits (not on the Atlas inference
            series); up to 8 dimensions. On Ascend950 also float8_e4m3fn, float8_e5m2, and uint8 holding hifloat8.
        scale: one dimension, one element or as many as the last dimension of `x` (8 times as many for int32);
            float32, or bfloat16 for integers except on the Atlas inference series.
        offset: the shape and dtype of `scale`, or None.
        dst_dtype: float16 (the default) or, except on the Atlas inference series, bfloat16.
        src_dtype: int8, or quint4x2 for int32; None takes what `x` holds.

    Returns:
        The shape of `x` (its last dimension times 8 for int32) in `dst_dtype`.
    """
    name = _formats.chosen(src_dtype, _HOLDS[x.dtype])
    values = _formats.decode(x.contiguous(), name)
    if offset is not None:
        values = values + wide(offset)
    out = values * wide(scale)
    return out.reshape(values.shape).to(_dtypes.storage(_formats.chosen(dst_dtype, "float16")))


@npu_anti_quant.check
def _(x, scale, offset, dst_dtype, src_dtype):
    old, new = _chip.on_310p(), _chip.on_950()
    results = ("float16",) if old else ("float16", "bfloat16")
    named = dst_dtype is None or _dtypes.name(dst_dtype)
    words = "" if named else "Input dst_type must be valid, but got UNKNOWN_SCALAR"
    _formats.check("dst_dtype", dst_dtype, *results, upstream=words)
    held = (torch.int8,) if old else (torch.int8, torch.int32)
    must.dtype("x", x, *(tuple(_HOLDS) if new else held))
    must.ndim("x", x, 1 if x.dtype == torch.int32 else 0, 8)
    integer = x.dtype in (torch.int8, torch.int32)
    must.dtype("scale", scale, torch.float32, *((torch.bfloat16,) if integer and not old else ()))
    must.ndim("scale", scale, 1)
    name = _HOLDS[x.dtype]
    last = x.shape[-1] * _formats.per_item(name) if x.dim() else 1
    fits = scale.shape[0] in (1, last)
    must.hold(fits, "scale", f"of shape (1) or ({last})", tuple(scale.shape), ErrCode.PARAM)
    must.shape("offset", offset, tuple(scale.shape))
    must.same_dtype("offset", offset, "scale", scale)
    _formats.check("src_dtype", src_dtype, name)


npu_anti_quant.samples = [
    Sample(lambda make: (make(3, 8, dtype=torch.int8, low=-128, high=128), make(8))),
    Sample(
        lambda make: (make(3, 8, dtype=torch.int8, low=-128, high=128), make(1)),
        lambda make: {"offset": make(1), "dst_dtype": torch.bfloat16, "src_dtype": torch.int8},
    ),
    Sample(
        lambda make: (
            make(3, 2, dtype=torch.int32, low=-(2**31), high=2**31),
            make(16, dtype=torch.bfloat16),
        ),
        {"src_dtype": torch.quint4x2},
    ),
]
