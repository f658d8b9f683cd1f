"""npu_swiglu_group_quant and npu_swiglu_group_quant_backward: SwiGLU with weights of rows, quantized to hifloat8."""

from __future__ import annotations

import math

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import quotient, wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared import _quant_groups as _groups

STATIC, DYNAMIC = 2, 3
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)

#: the least magnitude that counts for a dynamic scale
_LEAST = 1e-8


def _halves(x, limit):
    a, b = wide(x).chunk(2, -1)
    return (a.clamp(max=limit), b.clamp(-limit, limit)) if limit > 0 else (a, b)


def _row_factors(weight, shape):
    return wide(weight).reshape(*shape[:-1], 1)


def _used(group_index, shape):
    """Which rows belong to a group, ready to broadcast."""
    rows = math.prod(shape[:-1])
    inside = torch.arange(rows, device=group_index.device) < group_index.sum()
    return inside.view(*shape[:-1], 1)


@npu_op(
    "npu_swiglu_group_quant(Tensor x, *, Tensor? weight=None, Tensor? group_index=None, "
    "Tensor? scale=None, int dst_type=291, int quant_mode=0, int block_size=0, "
    "bool round_scale=False, float clamp_limit=-1.0, float dst_type_max=15.0, "
    "bool output_origin=False) -> (Tensor, Tensor, Tensor)",
    chips=("A5",),
    output_differentiability=(False, False, True),
)
def npu_swiglu_group_quant(
    x, weight, group_index, scale, quant_mode, clamp_limit, dst_type_max, output_origin
):
    r"""SwiGLU of the halves of the last dimension, weighted by rows, quantized to hifloat8 by groups of rows.

    $$ h = w \cdot \frac{a}{1 + e^{-a}} \cdot b, \qquad y = \mathrm{hif8}(h \cdot scale_g) \text{ or }
       \mathrm{hif8}(h / s_g) \text{ with } s_g = \frac{\max_g |h|}{dst\_type\_max} $$

    With a positive `clamp_limit` c, first $a = \min(a, c)$ and $b = \mathrm{clamp}(b, -c, c)$.

    Args:
        x: 1 to 8 dimensions, the last even; float16, bfloat16 or float32. Not empty.
        weight: w, one for each row, float32.
        group_index: int64, how many rows each group has; further rows are left out.
        scale: `quant_mode` 2: (1), or one for each group; float32.
        dst_type: of no effect in these modes.
        quant_mode: 2, by `scale`; 3, by the largest magnitude of the group. (0 and 1 exist in CANN, but upstream
            makes no result for them.)
        block_size, round_scale: of no effect in these modes.
        clamp_limit: c; -1 or 0 for none.
        dst_type_max: `quant_mode` 3: what the largest magnitude becomes; positive.
        output_origin: whether h is given, too.

    Returns:
        y as uint8; the scales $s_g$ of `quant_mode` 3 in float32, (1) or one for each group, else an empty tensor; and
        h in the dtype of `x`, or an empty tensor. Rows of no group are 0 in y, not in h.

    Constraints:
        Ascend950.

    Differs from upstream:
        The gradient is that of h (the third result); upstream's formula takes the gradient of the bytes.
    """
    a, b = _halves(x, clamp_limit)
    hidden = torch.nn.functional.silu(a) * b
    if weight is not None:
        hidden = hidden * _row_factors(weight, x.shape)
    rows = hidden.flatten(0, -2)
    if group_index is not None:
        rows = torch.where(_used(group_index, x.shape).flatten(0, -2), rows, 0.0)
        group = _groups.group_of_rows(group_index.cumsum(0), rows.shape[0])
        count = group_index.shape[0]
    else:
        group, count = torch.zeros(rows.shape[0], dtype=torch.int64, device=x.device), 1
    if quant_mode == STATIC:
        factor, found = scale, rows.new_zeros(0)
    else:
        top = rows.new_zeros(count).scatter_reduce(0, group, rows.abs().amax(-1), "amax")
        top = top.clamp(min=_LEAST)
        found = top / dst_type_max
        # CANN's kernel takes the reciprocal of the scale, or of what it comes from.
        factor = 1 / found if group_index is None else quotient(dst_type_max, top)
    values = rows * factor[group].unsqueeze(-1)
    y = _formats.encode(values, "hifloat8").view(hidden.shape)
    origin = hidden.to(x.dtype) if output_origin else x.new_zeros(0)
    return y, found.float(), origin


@npu_swiglu_group_quant.check
def _(
    x,
    weight,
    group_index,
    scale,
    dst_type,
    quant_mode,
    block_size,
    round_scale,
    clamp_limit,
    dst_type_max,
):
    must.dtype("x", x, *_FLOATS)
    must.ndim("x", x, 1, 8)
    fits = x.shape[-1] % 2 == 0 and x.numel() > 0
    must.hold(fits, "x", "of an even last dimension, not empty", tuple(x.shape), ErrCode.PARAM)
    must.choice("quant_mode", quant_mode, (STATIC, DYNAMIC))
    must.anything(dst_type, block_size, round_scale)  # CANN reads them in other modes alone
    _check_rows(x, weight, group_index)
    limit = clamp_limit in (-1.0, 0.0) or clamp_limit > 0
    must.hold(limit, "clamp_limit", "-1, 0 or positive", clamp_limit)
    if quant_mode == STATIC:
        must.present("scale", scale, "for quant_mode 2")
        must.dtype("scale", scale, torch.float32)
        must.shape("scale", scale, (1 if group_index is None else group_index.shape[0],))
    must.hold(dst_type_max > 0, "dst_type_max", "positive", dst_type_max)


def _check_rows(x, weight, group_index):
    rows = math.prod(x.shape[:-1])
    must.dtype("weight", weight, torch.float32)
    if weight is not None:
        must.hold(
            weight.numel() == rows, "weight", f"of {rows} elements", weight.numel(), ErrCode.PARAM
        )
    must.dtype("group_index", group_index, torch.int64)
    must.ndim("group_index", group_index, 1)
    if group_index is not None:
        must.hold(group_index.shape[0] > 0, "group_index", "not empty", group_index.shape[0])


@npu_swiglu_group_quant.backward
def _(grad, *, x, weight, group_index, clamp_limit, needs):
    grad_x, grad_weight = npu_swiglu_group_quant_backward(
        grad, x, weight=weight, group_index=group_index, clamp_limit=clamp_limit
    )
    return {"x": grad_x, "weight": grad_weight if needs.get("weight") else None}


npu_swiglu_group_quant.samples = [
    Sample(
        lambda make: (make(4, 256, dtype=torch.float16),), {"quant_mode": 3, "output_origin": True}
    ),
    Sample(
        lambda make: (make(2, 3, 256),),
        lambda make: {
            "weight": make(2, 3, 1),
            "group_index": make(2, dtype=torch.int64, low=2, high=3),
            "scale": make(2, low=1, high=4),
            "quant_mode": 2,
            "clamp_limit": 0.75,
        },
    ),
]


@npu_op(
    "npu_swiglu_group_quant_backward(Tensor grad_y, Tensor x, *, Tensor? weight=None, "
    "Tensor? y_origin=None, Tensor? group_index=None, float clamp_limit=0.0) -> (Tensor, Tensor)",
    chips=("A5",),
)
def npu_swiglu_group_quant_backward(grad_y, x, weight, y_origin, group_index, clamp_limit):
    r"""The gradients of `npu_swiglu_group_quant` before its rounding.

    $$ da = dy \cdot w \cdot b \cdot \sigma(a) (1 + a (1 - \sigma(a))), \qquad db = dy \cdot w \cdot a \sigma(a),
       \qquad dw = \sum dy \cdot a \sigma(a) b $$

    Where a value was clamped its gradient is 0, as in rows of no group.

    Args:
        grad_y: dy, of the shape of `x` with half the last dimension, in its dtype.
        x: 1 to 8 dimensions; float16, bfloat16 or float32; the last dimension even.
        weight: w, one for each row, float32.
        y_origin: $a \sigma(a) b$ of the shape and dtype of `grad_y`, computed anew if None.
        group_index: int64, how many rows each group has.
        clamp_limit: the limit of the forward pass, -1 for none. The default, 0, is refused as by the card.

    Returns:
        The gradient of `x` in its dtype, and that of `weight` (an empty tensor without one).
    """
    first, second = wide(x).chunk(2, -1)
    a, b = _halves(x, clamp_limit)
    gate = torch.sigmoid(a)
    grad = wide(grad_y)
    if group_index is not None:
        grad = torch.where(_used(group_index, x.shape), grad, 0.0)
    grad_weight = grad.new_zeros(0, dtype=torch.float32)
    if weight is not None:
        origin = a * gate * b if y_origin is None else wide(y_origin)
        grad_weight = (grad * origin).sum(-1).reshape(weight.shape).to(weight.dtype)
        grad = grad * _row_factors(weight, x.shape)
    grad_a = grad * b * gate * (1 + a * (1 - gate))
    grad_b = grad * a * gate
    if clamp_limit > 0:
        grad_a = torch.where(first < clamp_limit, grad_a, 0.0)
        grad_b = torch.where(second.abs() < clamp_limit, grad_b, 0.0)
    return torch.cat((grad_a, grad_b), -1).to(x.dtype), grad_weight


@npu_swiglu_group_quant_backward.check
def _(grad_y, x, weight, y_origin, group_index, clamp_limit):
    must.dtype("x", x, *_FLOATS)
    must.ndim("x", x, 1, 8)
    must.hold(x.shape[-1] % 2 == 0, "x", "of an even last dimension", tuple(x.shape), ErrCode.PARAM)
    half = (*x.shape[:-1], x.shape[-1] // 2)
    must.same_dtype("grad_y", grad_y, "x", x)
    must.shape("grad_y", grad_y, half)
    must.same_dtype("y_origin", y_origin, "x", x)
    must.shape("y_origin", y_origin, half)
    _check_rows(x, weight, group_index)
    limit = clamp_limit == -1.0 or clamp_limit > 0
    must.hold(limit, "clamp_limit", "-1 or positive", clamp_limit)


npu_swiglu_group_quant_backward.samples = [
    Sample(
        lambda make: (make(4, 8, dtype=torch.float16), make(4, 16, dtype=torch.float16)),
        {"clamp_limit": -1.0},
    ),
    Sample(
        lambda make: (make(4, 8), make(4, 16)),
        lambda make: {
            "weight": make(4, 1),
            "y_origin": make(4, 8, seed=9),
            "group_index": make(1, dtype=torch.int64, low=3, high=4),
            "clamp_limit": 0.5,
        },
    ),
]
