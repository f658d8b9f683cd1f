"""Dynamic quantization: scales from the data. Shared by the symmetric and the asymmetric operator and by fusions."""

from __future__ import annotations

import math

import torch
from torch.utils._python_dispatch import _disable_current_modes

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import quotient, wide
from torch_npu.ops._native import floats
from torch_npu.ops._shared import _chip, _formats
from torch_npu.ops._shared import _quant_groups as _groups

_HALVES = (torch.float16, torch.bfloat16)
MODES = ("pertoken", "pertensor", "perchannel")


def check(input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max):
    """The constraints that `npu_dynamic_quant` and `npu_dynamic_quant_asymmetric` share."""
    old = chips.current().family in ("910A", "310P")
    halves = _HALVES[:1] if old else _HALVES
    must.dtype("input", input, *halves)
    must.ndim("input", input, 2, 8)
    _formats.check("dst_type", dst_type, *_chip.formats("int8", *(() if old else ("int4",))))
    _formats.check_packing("input", input, _formats.chosen(dst_type))
    must.choice("quant_mode", quant_mode, MODES if _chip.on_950() else MODES[:1])
    if not _chip.on_950():
        must.unset("dst_type_max", dst_type_max, 0.0)
    must.hold(
        dst_type_max >= 0, "dst_type_max", "0 (the type's largest value) or positive", dst_type_max
    )
    must.dtype("smooth_scales", smooth_scales, *halves)
    if must.has_data(input) and smooth_scales is not None:  # graphs may mix them
        must.same_dtype("smooth_scales", smooth_scales, "input", input)
    if group_index is None:
        size = input.shape[-2] if quant_mode == "perchannel" else input.shape[-1]
        must.shape("smooth_scales", smooth_scales, (size,))
        return
    must.choice("quant_mode", quant_mode, ("pertoken",))
    must.present("smooth_scales", smooth_scales, "with 'group_index'")
    must.dtype("group_index", group_index, torch.int32)
    must.ndim("group_index", group_index, 1)
    experts = group_index.shape[0]
    must.hold(1 <= experts <= 1024, "group_index", "of 1 to 1024 elements", experts, ErrCode.PARAM)
    must.shape("smooth_scales", smooth_scales, (experts, input.shape[-1]))
    _groups.check_ends("group_index", group_index, math.prod(input.shape[:-1]))


def smoothed(x, smooth_scales, group_index, quant_mode):
    """The input in fp32 times its smoothing scales, which 310P and 910A do not read."""
    x = wide(x)
    if smooth_scales is None or order() == STEPS:
        return x
    smooth = wide(smooth_scales)
    if group_index is not None:
        group = _groups.group_of_rows(group_index, math.prod(x.shape[:-1]))
        return x * smooth[group].view(x.shape)
    return x * (smooth.unsqueeze(-1) if quant_mode == "perchannel" else smooth)


def dims(x, quant_mode):
    """The dimensions that share one scale."""
    if quant_mode == "pertensor":
        return tuple(range(x.dim()))
    return (-2,) if quant_mode == "perchannel" else (-1,)


def squeezed(scale, quant_mode):
    """Scales as they are returned: without the dimensions that they span."""
    if quant_mode == "pertensor":
        return scale.reshape(1)
    return scale.squeeze(-2 if quant_mode == "perchannel" else -1).contiguous()


def extreme(reduce, x, over):
    """A maximum or minimum over dimensions that may be empty, where it is 0."""
    if any(x.shape[d] == 0 for d in over):
        return x.sum(over, keepdim=True)
    return reduce(x, over, keepdim=True)


#: how scale and integers come about, which shows in the last place:
#:   PLAIN scale = max / top, x / scale; PRODUCT scale = max * (1 / top), x * (top / max);
#:   QUOTIENT scale = max * (1 / top), x / scale; INVERSE scale = 1 / (top / max), x * (top / max);
#:   HALF scale = max / top, x * (1 / scale) rounded to float16 first
#:   STEPS scale = max * (1 / top), x * (top / max) in float16, halves away from zero
#:   RATIO scale = max / top, x * (top / max)
PLAIN, PRODUCT, QUOTIENT, INVERSE, HALF, STEPS, RATIO = range(7)


def order() -> int:
    """The order of operations of DynamicQuant on the chip.

    Integers are x * (top / max) on A2 and A3, the same in float16 on 310P and 910A (dynamic_quant_align_310p.h), x / scale
    on A5; the scale is max * (1 / top). `symmetric_order` knows more of A2 and A3.
    """
    if chips.current().family in ("910A", "310P"):
        return STEPS
    return QUOTIENT if _chip.on_950() else PRODUCT


#: the rows that A2's and A3's kernels hold in their memory, without and with smooth_scales (dynamic_quant_tiling.cpp):
#: two at a time, of any length; several at a time, of whole blocks of 8
_TWO_ROWS, _MANY_ROWS = (15040, 10288), (16320, 12800)


def symmetric_order(length, smooth_scales, group_index):
    """`order` of the symmetric quantization: the kernels for groups and for long rows return 1 / (top / max)."""
    of_chip = order()
    smooth = smooth_scales is not None
    short = length <= _TWO_ROWS[smooth] or (length % 8 == 0 and length <= _MANY_ROWS[smooth])
    return INVERSE if of_chip == PRODUCT and (group_index is not None or not short) else of_chip


def reciprocal(number: float, dtype: torch.dtype) -> float:
    """1 / number in the dtype: a number, also where shapes alone are computed."""
    with _disable_current_modes():
        return (1 / torch.tensor(number, dtype=dtype)).item()


#: what 310P's kernels take for no range at all, and where their conversions to float16 end
_LEAST, _MAX = 1e-12, 65504.0


def _in_half(x):
    return wide(x.half())


def symmetric(x, name, top=0.0, quant_mode="pertoken", mode="rint", order=PLAIN):
    """Rounds fp32 `x` to the format with scale = max |x| / top; returns (y, scale). Zeros stay zeros."""
    high = extreme(torch.amax, x.abs(), dims(x, quant_mode))
    top = top or _formats.largest(name)
    scale = high / top if order in (PLAIN, HALF, RATIO) else high * reciprocal(top, x.dtype)
    if order in (PRODUCT, INVERSE, RATIO):
        factor = quotient(top, high)
        scale = 1 / factor if order == INVERSE else scale
        y = _formats.encode(x * torch.where(high == 0, 0.0, factor), name, mode)
        return y, squeezed(scale, quant_mode)
    if order == STEPS:
        factor = torch.where(high <= _LEAST, 0.0, quotient(top, high).clamp(max=_MAX))
        return _formats.encode(_in_half(x * _in_half(factor)), name, "round"), squeezed(
            scale, quant_mode
        )
    divisor = torch.where(scale == 0, 1.0, scale)
    if order == HALF:
        return _formats.encode(_in_half(x * (1 / divisor)), name, mode), squeezed(scale, quant_mode)
    return _formats.encode(x / divisor, name, mode), squeezed(scale, quant_mode)


def asymmetric_scale(high, low, top, bottom, order):
    """The scale of rows between `low` and `high`."""
    span = top - bottom
    if order == QUOTIENT:
        return (high - low) * reciprocal(span, high.dtype)
    scale = (high - low) / span
    return torch.where(scale > 1e-12, scale, 1e-12) if order == PRODUCT else scale


def asymmetric_steps(x, high, low, name):
    """(y, scale, offset) of rows as 310P's kernel has them: in float16, around the middle of the range."""
    span = high - low
    factor = torch.where(span <= _LEAST, 0.0, quotient(255, span))
    offset = -(high + low) * factor * 0.5
    scaled = _in_half(x * _in_half(factor.clamp(max=_MAX)))
    y = _in_half(scaled + _in_half(offset.clamp(-_MAX, _MAX)))
    return _formats.encode(y, name, "round"), span / 255, offset


def native(
    x,
    name,
    asymmetric,
    smooth_scales=None,
    group_index=None,
    quant_mode="pertoken",
    dst_type_max=0.0,
):
    """(y, scale, offset) from the C++ kernel, or None where it does not serve: it has int8 and int4 by rows."""
    plain = name in ("int8", "int4") and quant_mode == "pertoken" and not dst_type_max
    if not plain or x.dim() == 0 or not floats(x, smooth_scales) or order() == STEPS:
        return None
    found = torch.ops.softnpu.dynamic_quant(
        x, smooth_scales, group_index, name == "int4", asymmetric, order()
    )
    if not asymmetric and symmetric_order(x.shape[-1], smooth_scales, group_index) == INVERSE:
        values = smoothed(x, smooth_scales, group_index, quant_mode)
        high = extreme(torch.amax, values.abs(), (-1,)).squeeze(-1)
        return found[0], 1 / quotient(_formats.largest(name), high), found[2]
    return found
