"""npu_dequant_swiglu_quant: matmul results dequantized, gated by swiglu and quantized again."""

from __future__ import annotations

import math

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _dynamic, _formats, _rounding
from torch_npu.ops._shared import _quant_groups as _groups

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_ROUND_MODES = tuple(_rounding.ROUND_MODES)
_FLOAT4 = ("float4_e2m1fn_x2", "float4_e1m2fn_x2")


def _gate(x, dim, activate_left, swiglu_mode, clamp_limit, glu_alpha, glu_bias):
    """The gated half times the other one."""
    if swiglu_mode == 1:
        pairs = x.unflatten(dim, (-1, 2))
        gate, linear = pairs.select(dim + 1, 0), pairs.select(dim + 1, 1)
    else:
        left, right = x.chunk(2, dim)
        gate, linear = (left, right) if activate_left else (right, left)
    if swiglu_mode == 0:
        return gate * torch.sigmoid(gate) * linear
    gate = gate.clamp(max=clamp_limit)
    linear = linear.clamp(-clamp_limit, clamp_limit)
    return gate * torch.sigmoid(glu_alpha * gate) * (linear + glu_bias)


def _of_rows(bias, group, shape):
    """The bias of each row's group."""
    by_group = bias.reshape(-1, shape[-1])
    return by_group[0] if group is None or len(by_group) == 1 else by_group[group].view(shape)


def _by_group(factor, groups, width):
    """A scale or offset as (groups, width) or (groups, 1)."""
    if factor is None or factor.dim() == 2:
        return factor
    return factor.unsqueeze(0 if groups == 1 and factor.shape[0] == width else 1)


def _check_output(x, dst_type, round_mode, activate_dim, quant_mode, group_index):
    """What only Ascend950 lets a program choose; returns the dimension that is halved."""
    if not _chip.on_950():
        _formats.check("dst_type", dst_type, "int8")
        must.choice("round_mode", round_mode, (None, 0))
        must.choice("activate_dim", activate_dim, (None, -1, x.dim() - 1))
        return x.dim() - 1
    _formats.check("dst_type", dst_type, *_chip.formats("int8"), *_FLOAT4)
    name = _formats.chosen(dst_type)
    modes = range(5) if name in _FLOAT4 else (1,) if name == "hifloat8" else (0,)
    must.choice("round_mode", round_mode or 0, modes)
    dim = -1 if activate_dim is None else activate_dim
    must.hold(-x.dim() <= dim < x.dim(), "activate_dim", f"in [{-x.dim()}, {x.dim()})", dim)
    if dim % x.dim() != x.dim() - 1:
        must.unset("group_index", group_index)
        must.choice("quant_mode", quant_mode, (0,))
    return dim % x.dim()


@npu_op(
    "npu_dequant_swiglu_quant(Tensor x, *, Tensor? weight_scale=None, "
    "Tensor? activation_scale=None, Tensor? bias=None, Tensor? quant_scale=None, "
    "Tensor? quant_offset=None, Tensor? group_index=None, bool activate_left=False, "
    "int quant_mode=0, int? dst_type=None, int? round_mode=None, int? activate_dim=None, "
    "int swiglu_mode=0, float clamp_limit=7.0, float glu_alpha=1.702, float glu_bias=1.0) "
    "-> (Tensor, Tensor)"
)
def npu_dequant_swiglu_quant(
    x,
    weight_scale,
    activation_scale,
    bias,
    quant_scale,
    quant_offset,
    group_index,
    activate_left,
    quant_mode,
    dst_type,
    round_mode,
    activate_dim,
    swiglu_mode,
    clamp_limit,
    glu_alpha,
    glu_bias,
):
    r"""Dequantizes, applies a gated activation and quantizes, with scales for each group of rows.

    $$ d = (x + bias) \cdot weight\_scale \cdot activation\_scale $$
    $$ g = \mathrm{swish}(A, 1) \cdot B \quad (swiglu\_mode = 0), \qquad
       \mathrm{swish}(z, \alpha) = z \cdot \mathrm{sigmoid}(\alpha z) $$
    $$ g = \mathrm{swish}(\min(A, limit), \alpha) \cdot (\mathrm{clamp}(B, -limit, limit) + glu\_bias)
       \quad (swiglu\_mode = 1, 2) $$
    $$ y = \mathrm{round}(g / quant\_scale + quant\_offset) \quad (quant\_mode = 0), \qquad
       y, scale = \mathrm{dynamic\_quant}(g \cdot quant\_scale) \quad (quant\_mode = 1) $$

    A and B are the halves of d, A the right one unless `activate_left`; with `swiglu_mode` 1 A are the even and B the
    odd elements.

    Args:
        x: (*, 2H), T rows in all; int32, float16 (not with `group_index`, but on Ascend950) or bfloat16. T may be 0.
        weight_scale: float32 (groups, 2H), or (2H) for one group.
        activation_scale: float32, T elements; None for a floating `x`.
        bias: int32 (groups, 2H), or (2H) for one group; None for a floating `x`. On Ascend950 and with `group_index` it
            may be floating: it is then added after dequantization.
        quant_scale: (groups, H), (groups) or for one group (H); float32, for dynamic quantization also float16 and
            bfloat16.
        quant_offset: float32, float16 or bfloat16, the shapes of `quant_scale`; None for dynamic quantization.
        group_index: int64 (on Ascend950 also int32), how many rows each group has; the sum is at most T.
        activate_left: which half is gated, for `swiglu_mode` 0 and 2.
        quant_mode: 0 static, 1 dynamic.
        dst_type: int8; on Ascend950 also float8_e4m3fn, float8_e5m2, hifloat8, float4_e2m1fn_x2, float4_e1m2fn_x2.
        round_mode: 0 rint, 1 round, 2 floor, 3 ceil, 4 trunc. Other than 0 only on Ascend950: 1 for hifloat8 and any
            for the 4-bit floats.
        activate_dim: the dimension that is halved; the last one, except on Ascend950 in static mode without groups.
        swiglu_mode: 0, 1 or 2, as above.
        clamp_limit: positive, finite.
        glu_alpha: finite.
        glu_bias: finite.

    Returns:
        y of shape (T, H), int8 or `dst_type` (4-bit floats two to a byte), and scale, float32 of shape (T); 0 in static
        mode.

    Constraints:
        With `group_index`, H is at most 10496 and divisible by 32 (not on Ascend950).

    Differs from upstream: rows past the sum of `group_index` are 0, upstream leaves them unwritten.
    """
    group, groups, ends = None, 1, None
    if group_index is not None:
        ends, groups = group_index.cumsum(0), group_index.shape[0]
        group = _groups.group_of_rows(ends, math.prod(x.shape[:-1]))
    if bias is not None and bias.dtype == torch.int32:
        x = x + _of_rows(bias, group, x.shape)
    d = wide(x)
    if weight_scale is not None:
        d = d * _groups.for_rows(weight_scale, group, groups, d.shape)
    if activation_scale is not None:
        d = d * activation_scale.reshape(*d.shape[:-1], 1)
    if bias is not None and bias.dtype != torch.int32:
        d = d + _of_rows(wide(bias), group, x.shape)
    dim = (-1 if activate_dim is None else activate_dim) % x.dim()
    g = _gate(d, dim, activate_left, swiglu_mode, clamp_limit, glu_alpha, glu_bias)
    if quant_scale is not None:
        factor = _groups.for_rows(quant_scale, group, groups, g.shape)
        g = g * factor if quant_mode == 1 else g / factor
    if quant_offset is not None:
        g = g + _groups.for_rows(quant_offset, group, groups, g.shape)
    if ends is not None:
        g = _groups.blank_rest(g, ends)
    name, mode = _formats.chosen(dst_type), _ROUND_MODES[round_mode or 0]
    if quant_mode == 1:
        return _dynamic.symmetric(g, name, mode=mode, order=_dynamic.QUOTIENT)
    return _formats.encode(g, name, mode), g.new_zeros(g.shape[:-1])


@npu_dequant_swiglu_quant.check
def _(
    x,
    weight_scale,
    activation_scale,
    bias,
    quant_scale,
    quant_offset,
    group_index,
    quant_mode,
    dst_type,
    round_mode,
    activate_dim,
    swiglu_mode,
    clamp_limit,
    glu_alpha,
    glu_bias,
):
    must.dtype("x", x, torch.int32, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2, 8)
    must.choice("quant_mode", quant_mode, (0, 1))
    must.choice("swiglu_mode", swiglu_mode, (0, 1, 2))
    limit = math.isfinite(clamp_limit) and clamp_limit > 0
    must.hold(limit, "clamp_limit", "positive and finite", clamp_limit)
    must.hold(math.isfinite(glu_alpha), "glu_alpha", "finite", glu_alpha)
    must.hold(math.isfinite(glu_bias), "glu_bias", "finite", glu_bias)
    dim = _check_output(x, dst_type, round_mode, activate_dim, quant_mode, group_index)
    even = x.shape[dim] % 2 == 0
    must.hold(even, "x", f"even in dimension {dim}", tuple(x.shape), ErrCode.PARAM)
    width = x.shape[-1] // 2 if dim == x.dim() - 1 else x.shape[-1]
    packed = width % _formats.per_item(_formats.chosen(dst_type)) == 0
    must.hold(
        packed, "x", "such that 4-bit results fill whole bytes", tuple(x.shape), ErrCode.PARAM
    )
    rows, groups = math.prod(x.shape[:-1]), 1
    if group_index is not None:
        narrow = (torch.int32,) if _chip.on_950() else ()
        must.dtype("group_index", group_index, torch.int64, *narrow)
        must.ndim("group_index", group_index, 1)
        groups = group_index.shape[0]
        must.hold(groups > 0, "group_index", "of at least one group", groups, ErrCode.PARAM)
        if not _chip.on_950():
            must.dtype("x", x, torch.int32, torch.bfloat16)
            fits = width <= 10496 and width % 32 == 0
            expected = "of a half last dimension up to 10496, divisible by 32, with 'group_index'"
            must.hold(fits, "x", expected, tuple(x.shape), ErrCode.PARAM)
        _groups.check_counts("group_index", group_index, rows)
    must.dtype("weight_scale", weight_scale, torch.float32)
    _groups.check_factor("weight_scale", weight_scale, groups, x.shape[-1])
    if x.dtype != torch.int32:
        for name, value in (("activation_scale", activation_scale), ("bias", bias)):
            must.hold(value is None, name, f"None for 'x' of {x.dtype}", "a tensor", ErrCode.PARAM)
    must.dtype("activation_scale", activation_scale, torch.float32)
    if activation_scale is not None:
        fits, given = activation_scale.numel() == rows, tuple(activation_scale.shape)
        must.hold(fits, "activation_scale", f"of {rows} elements", given, ErrCode.PARAM)
    floating = _chip.on_950() or group_index is not None
    must.dtype("bias", bias, torch.int32, *(_FLOATS if floating else ()))
    _groups.check_factor("bias", bias, groups, x.shape[-1])
    must.dtype("quant_scale", quant_scale, *(_FLOATS if quant_mode else _FLOATS[:1]))
    _groups.check_factor("quant_scale", quant_scale, groups, width, scalars=True)
    dynamic = quant_mode == 1 and quant_offset is not None
    must.hold(
        not dynamic, "quant_offset", "None for dynamic quantization", "a tensor", ErrCode.PARAM
    )
    must.dtype("quant_offset", quant_offset, *_FLOATS)
    _groups.check_factor("quant_offset", quant_offset, groups, width, scalars=True)


@npu_dequant_swiglu_quant.native
def _(
    x,
    weight_scale,
    activation_scale,
    bias,
    quant_scale,
    quant_offset,
    group_index,
    activate_left,
    quant_mode,
    dst_type,
    round_mode,
    activate_dim,
    swiglu_mode,
    clamp_limit,
    glu_alpha,
    glu_bias,
):
    last = activate_dim is None or activate_dim % x.dim() == x.dim() - 1
    rint = not round_mode and _formats.chosen(dst_type) == "int8"
    added = bias is None or (bias.dtype == x.dtype == torch.int32) or floats(bias)
    added = added and (bias is None or bias.numel() == x.shape[-1])  # not one for each group
    factors = floats(weight_scale, activation_scale, quant_scale, quant_offset)
    if not (last and rint and added and factors and (x.dtype == torch.int32 or floats(x))):
        return NotImplemented  # fmt: skip
    group, groups, used = None, 1, math.prod(x.shape[:-1])
    if group_index is not None:
        ends, groups = group_index.cumsum(0), group_index.shape[0]
        group, used = _groups.group_of_rows(ends, used), int(ends[-1])
    width = x.shape[-1]
    return torch.ops.softnpu.dequant_swiglu_quant(
        x,
        _by_group(weight_scale, groups, width),
        activation_scale,
        None if bias is None else bias.reshape(-1),
        _by_group(quant_scale, groups, width // 2),
        _by_group(quant_offset, groups, width // 2),
        group,
        used,
        activate_left,
        quant_mode == 1,
        swiglu_mode,
        clamp_limit,
        glu_alpha,
        glu_bias,
    )


npu_dequant_swiglu_quant.samples = [
    Sample(
        lambda make: (make(4, 128, dtype=torch.int32, low=-10, high=10),),
        lambda make: {
            "weight_scale": make(1, 128),
            "activation_scale": make(4, 1),
            "quant_scale": make(1, 64),
            "group_index": make(1, dtype=torch.int64, low=3, high=5),
            "quant_mode": 1,
        },
    ),
    Sample(
        lambda make: (make(4, 16, dtype=torch.bfloat16),),
        lambda make: {"quant_scale": make(1, 8, low=0.01, high=0.02), "swiglu_mode": 2},
    ),
    Sample(
        lambda make: (make(4, 16, dtype=torch.int32, low=-10, high=10),),
        lambda make: {
            "weight_scale": make(16),
            "bias": make(16, dtype=torch.int32, low=-5, high=5),
            "activate_left": True,
            "quant_mode": 1,
            "swiglu_mode": 1,
        },
    ),
]
