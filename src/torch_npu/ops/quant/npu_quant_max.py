"""npu_quant_max: quantization by a given scale, and the largest magnitude for the next one."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared import _quant_groups as _groups

_FORMATS = ("float8_e5m2", "float8_e4m3fn", "hifloat8")


@npu_op(
    'npu_quant_max(Tensor x, Tensor scale, *, str round_mode="rint", int dst_dtype=291, '
    "Tensor? group_list=None) -> (Tensor, Tensor)",
    chips=("A5",),
)
def npu_quant_max(x, scale, dst_dtype, group_list):
    r"""Quantizes with a scale that was delayed by a step, and takes the largest magnitude for the next one.

    $$ y = \mathrm{round}(x \cdot scale), \qquad amax = \max |x| $$

    With several groups of rows each has a scale and a maximum of its own. NaN quantizes to 0.

    Args:
        x: 1 to 8 dimensions; float16, bfloat16 or float32.
        scale: (1), or one for each group; float32.
        round_mode: "rint" for 8-bit floats, "round" for hifloat8.
        dst_dtype: float8_e5m2 (the default), float8_e4m3fn or hifloat8.
        group_list: the end of each group of rows (the first dimension): non-decreasing, the last one is their number.

    Returns:
        y in the shape of `x`, and the maxima (1), or one for each group, in the dtype of `x`.

    Constraints:
        Ascend950. "hybrid" rounding of hifloat8 is not here.
    """
    name = _formats.chosen(dst_dtype)
    wide_x = wide(x)
    size = wide_x.abs()
    if group_list is None or group_list.shape[0] <= 1:
        values = wide_x * scale
        top = size.amax().reshape(1) if x.numel() else size.new_zeros(1)
    else:
        group = _groups.group_of_rows(group_list, x.shape[0])
        by_row = size.flatten(1).amax(-1) if x.dim() > 1 else size
        top = size.new_zeros(group_list.shape[0]).scatter_reduce(0, group, by_row, "amax")
        values = wide_x * scale[group].view(-1, *(1 for _ in x.shape[1:]))
    return _formats.encode(values.nan_to_num(nan=0.0), name), top.to(x.dtype)


@npu_quant_max.check
def _(x, scale, round_mode, dst_dtype, group_list):
    must.dtype("x", x, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("x", x, 1, 8)
    must.dtype("scale", scale, torch.float32)
    _formats.check("dst_dtype", dst_dtype, *_FORMATS)
    high = _formats.chosen(dst_dtype) == "hifloat8"
    if high and round_mode == "hybrid":
        raise NotImplementedError("npu_quant_max: round_mode 'hybrid'")
    must.choice("round_mode", round_mode, ("round",) if high else ("rint",))
    groups = 1 if group_list is None else max(group_list.shape[0], 1)
    must.shape("scale", scale, (groups,))
    if group_list is not None:
        must.ndim("group_list", group_list, 1)
        integers = group_list.dtype in (torch.int32, torch.int64)
        must.hold(integers, "group_list", "int32 or int64", group_list.dtype, ErrCode.TYPE)
        if groups > 1:
            _groups.check_ends("group_list", group_list, x.shape[0])


npu_quant_max.samples = [
    Sample(lambda make: (make(3, 16, dtype=torch.float16), make(1, low=10, high=40))),
    Sample(
        lambda make: (make(6, 2, 8), make(2, low=10, high=40)),
        lambda make: {
            "group_list": make(2, dtype=torch.int64, low=6, high=7),
            "dst_dtype": 290,
            "round_mode": "round",
        },
    ),
]
