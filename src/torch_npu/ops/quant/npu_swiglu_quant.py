"""npu_swiglu_quant: swiglu, then quantization with scales for each group of rows."""

from __future__ import annotations

import math

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import quotient, wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _dynamic, _formats, _packing, _rounding
from torch_npu.ops._shared import _quant_groups as _groups

_TARGETS = {"int8": torch.int8, "int4": torch.quint4x2}


@npu_op(
    "npu_swiglu_quant(Tensor x, *, Tensor? smooth_scales=None, Tensor? offsets=None, "
    "Tensor? group_index=None, bool activate_left=False, int quant_mode=0, "
    "int group_list_type=0, ScalarType? dst_type=None) -> (Tensor, Tensor)"
)
def npu_swiglu_quant(
    x, smooth_scales, offsets, group_index, activate_left, quant_mode, group_list_type, dst_type
):
    r"""Gates one half of the last dimension with the other one and quantizes the result.

    $$ g = \mathrm{swish}(A) \cdot B \cdot smooth\_scales_{group} $$
    $$ y = \mathrm{round}(g + offsets_{group}) \quad (quant\_mode = 0), \qquad
       scale = \frac{DTYPE\_MAX}{\max_{row} |g|}, \; y = \mathrm{round}(g \cdot scale) \quad (quant\_mode = 1) $$

    A is the right half unless `activate_left`. Halves round to even, results saturate.

    Args:
        x: at least 2 dimensions; float16, bfloat16 or float32; an even last dimension 2N of at most 8192.
        smooth_scales: float32 (groups, N) or (groups).
        offsets: float32 in the shape of `smooth_scales`, for static quantization; without effect on dynamic.
        group_index: int32, one dimension: the end of each group of rows, or how many it has.
        activate_left: which half is gated.
        quant_mode: 0 static, 1 dynamic.
        group_list_type: 0 if `group_index` holds ends, 1 for counts.
        dst_type: int8 (the default) or quint4x2.

    Returns:
        y as int8 (quint4x2: two values to a byte, the first in the low bits), and scale in float32 in the shape of `x`
        without the last dimension; 0 in static mode. The scale multiplies: it is the reciprocal of that of
        `npu_dynamic_quant`.

    Constraints:
        quint4x2 needs a last dimension divisible by 4. In static mode `smooth_scales` and `offsets` have one shape.

    Differs from upstream: rows past the groups are 0, upstream leaves them unwritten.
    """
    group, groups, ends = None, 1, None
    if group_index is not None:
        ends = group_index.cumsum(0) if group_list_type == 1 else group_index
        groups = group_index.shape[0]
        group = _groups.group_of_rows(ends, math.prod(x.shape[:-1]))
    left, right = wide(x).chunk(2, -1)
    gate, linear = (left, right) if activate_left else (right, left)
    g = gate * torch.sigmoid(gate) * linear
    if smooth_scales is not None:
        g = g * _groups.for_rows(smooth_scales, group, groups, g.shape)
    name = _formats.chosen(dst_type)
    if quant_mode == 1:
        top = _dynamic.extreme(torch.amax, g.abs(), (-1,))
        scale = quotient(_formats.largest(name), top)
        g = torch.where(top == 0, 0.0, g * scale)
    else:
        scale = g.new_zeros(*g.shape[:-1], 1)
        if offsets is not None:
            g = g + _groups.for_rows(offsets, group, groups, g.shape)
    if ends is not None:
        g, scale = _groups.blank_rest(g, ends), _groups.blank_rest(scale, ends)
    y = _rounding.saturate(g, _TARGETS[name]).contiguous()
    y = _packing.pack_int4(y, torch.int8) if name == "int4" else y
    return y, scale.squeeze(-1).contiguous()


@npu_swiglu_quant.check
def _(x, smooth_scales, offsets, group_index, quant_mode, group_list_type, dst_type):
    must.dtype("x", x, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("x", x, 2, 8)
    _formats.check("dst_type", dst_type, *_TARGETS)
    last, unit = x.shape[-1], 4 if _formats.chosen(dst_type) == "int4" else 2
    fits = 0 < last <= 8192 and last % unit == 0
    expected = f"of a last dimension of at most 8192, divisible by {unit}"
    must.hold(fits, "x", expected, tuple(x.shape), ErrCode.PARAM)
    must.choice("quant_mode", quant_mode, (0, 1))
    must.choice("group_list_type", group_list_type, (0, 1))
    groups = 1
    if group_index is not None:
        must.dtype("group_index", group_index, torch.int32)
        must.ndim("group_index", group_index, 1)
        groups, rows = group_index.shape[0], math.prod(x.shape[:-1])
        must.hold(groups > 0, "group_index", "of at least one group", groups, ErrCode.PARAM)
        if group_list_type == 0:
            _groups.check_ends("group_index", group_index, rows, whole=False)
        else:
            _groups.check_counts("group_index", group_index, rows)
    for name, factor in (("smooth_scales", smooth_scales), ("offsets", offsets)):
        must.dtype(name, factor, torch.float32)
        _groups.check_factor(name, factor, groups, last // 2, scalars=True)
    if quant_mode == 0:
        shapes = [None if f is None else tuple(f.shape) for f in (smooth_scales, offsets)]
        same = shapes[0] == shapes[1]
        must.hold(same, "offsets", f"as 'smooth_scales' ({shapes[0]})", shapes[1], ErrCode.PARAM)


npu_swiglu_quant.samples = [
    Sample(
        lambda make: (make(6, 16),),
        lambda make: {
            "smooth_scales": make(2, 8),
            "group_index": make(2, dtype=torch.int32, low=6, high=7),
            "quant_mode": 1,
        },
    ),
    Sample(
        lambda make: (make(2, 3, 16, dtype=torch.float16),),
        lambda make: {
            "smooth_scales": make(1, low=9, high=90),
            "offsets": make(1),
            "activate_left": True,
            "dst_type": torch.quint4x2,
        },
    ),
]
