"""npu_group_quant: rows quantized with the scales of their group."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared import _quant_groups as _groups

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@npu_op(
    "npu_group_quant(Tensor x, Tensor scale, Tensor group_index, *, Tensor? offset=None, "
    "ScalarType? dst_dtype=None) -> Tensor"
)
def npu_group_quant(x, scale, group_index, offset, dst_dtype):
    r"""Quantizes each group of rows with a row of scales of its own.

    $$ y = \mathrm{round}(x \cdot scale_{group} + offset) $$

    Halves round to even, results saturate, NaN becomes 0.

    Args:
        x: (S, H); float32, float16 or bfloat16.
        scale: (E, H) with E > 0; float32, float16 or bfloat16.
        group_index: (E), int32 or int64: the end of each group of rows, non-decreasing from at least 0 up to S.
        offset: one element of the dtype of `scale`, or None.
        dst_dtype: int8 (the default) or quint4x2.

    Returns:
        int8 in the shape of `x`, or for quint4x2 int32 of shape (S, H / 8), the first value in the lowest bits.

    Constraints:
        quint4x2 needs H divisible by 8.
    """
    group = _groups.group_of_rows(group_index, x.shape[0])
    y = wide(x) * wide(scale)[group]
    if offset is not None:
        y = y + wide(offset)
    return _formats.encode(y, _formats.chosen(dst_dtype))


@npu_group_quant.check
def _(x, scale, group_index, offset, dst_dtype):
    must.dtype("x", x, *_FLOATS)
    must.ndim("x", x, 2)
    must.dtype("scale", scale, *_FLOATS)
    must.shape("scale", scale, (None, x.shape[1]))
    must.hold(scale.shape[0] > 0, "scale", "of at least one row", tuple(scale.shape), ErrCode.PARAM)
    must.dtype("group_index", group_index, torch.int32, torch.int64)
    must.shape("group_index", group_index, (scale.shape[0],))
    must.shape("offset", offset, (1,))
    must.same_dtype("offset", offset, "scale", scale)
    _formats.check("dst_dtype", dst_dtype, "int8", "int4")
    _formats.check_packing("x", x, _formats.chosen(dst_dtype))
    _groups.check_ends("group_index", group_index, x.shape[0])


npu_group_quant.samples = [
    Sample(
        lambda make: (
            make(6, 4, dtype=torch.float16),
            make(1, 4, low=1, high=50),
            make(1, dtype=torch.int32, low=6, high=7),
        ),
        lambda make: {"offset": make(1)},
    ),
    Sample(
        lambda make: (
            make(5, 16),
            make(2, 16, low=1, high=9),
            make(2, dtype=torch.int64, low=5, high=6),
        ),
        {"dst_dtype": torch.quint4x2},
    ),
]
