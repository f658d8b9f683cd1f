"""npu_swiglu_mx_quant: SwiGLU, then a microscaling format."""

from __future__ import annotations

import math

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats, _mx
from torch_npu.ops._shared import _quant_groups as _groups


def _gated(x, dim, left, mode, limit, alpha, bias):
    """The activation in the dtype of x, from the halves of a dimension or (mode 1) its even and odd places."""
    if mode == 1:
        glu, linear = x.float()[..., 0::2].clamp(max=limit), x.float()[..., 1::2]
        out = glu / (1 + torch.exp(-alpha * glu)) * (linear.clamp(-limit, limit) + bias)
    else:
        first, second = x.float().chunk(2, dim)
        act, gate = (first, second) if left else (second, first)
        out = torch.nn.functional.silu(act) * gate
    return out.to(x.dtype)


@npu_op(
    "npu_swiglu_mx_quant(Tensor x, *, Tensor? group_index=None, int activate_dim=-1, "
    "bool activate_left=False, int swiglu_mode=0, float clamp_limit=7.0, float glu_alpha=1.702, "
    "float glu_bias=1.0, int group_mode=0, int axis=-1, int dst_type=296, "
    'str round_mode="rint", int scale_alg=0, float max_dtype_value=0) -> (Tensor, Tensor)',
    chips=("A5",),
)
def npu_swiglu_mx_quant(
    x,
    group_index,
    activate_dim,
    activate_left,
    swiglu_mode,
    clamp_limit,
    glu_alpha,
    glu_bias,
    group_mode,
    axis,
    dst_type,
    round_mode,
    scale_alg,
):
    r"""The gated activation SwiGLU, rounded to the dtype of `x`, and `npu_dynamic_mx_quant` of it in blocks of 32.

    With `swiglu_mode` 0, $a$ and $b$ are the halves of `activate_dim`:

    $$ h = \frac{a}{1 + e^{-a}} \cdot b $$

    With 1, $a$ and $b$ are the even and odd elements of the last dimension and

    $$ a' = \min(a, limit), \quad b' = \mathrm{clamp}(b, -limit, limit), \quad
       h = \frac{a'}{1 + e^{-\alpha a'}} \cdot (b' + bias) $$

    Args:
        x: 2 to 7 dimensions, `activate_dim` even; float16 or bfloat16.
        group_index: int64 or int32, up to 256 groups of rows; rows past the last group are left out. With `axis` -2, `x` has
            2 dimensions and no block reaches past its group.
        activate_dim: the last dimension or the last but one; the last one for `swiglu_mode` 1.
        activate_left: `swiglu_mode` 0: whether $a$ is the first half.
        swiglu_mode: 0 or 1.
        clamp_limit, glu_alpha, glu_bias: $limit$ (positive and finite), $\alpha$ and $bias$ of mode 1.
        group_mode: what `group_index` holds: 0 sizes, 1 ends.
        axis: the axis of the blocks: the last one or the last but one.
        dst_type: float4_e2m1fn_x2 (the default), float4_e1m2, float8_e4m3fn or float8_e5m2.
        round_mode: "rint"; for 4-bit floats also "round" and "floor".
        scale_alg: 0; for 8-bit floats also 1, and 2 with the same result.
        max_dtype_value: of no effect for these algorithms.

    Returns:
        y in the shape of h (4-bit floats two to a uint8), and the scales as uint8: two blocks of the axis together,
        as `npu_dynamic_mx_quant`; for groups along -2, (rows // 64 + groups, N, 2) with each group's scales right
        behind those of the one before. Rows of no group are 0 (on the card whatever the memory held).

    Constraints:
        Ascend950.

    Differs from upstream:
        CANN's public kernel reads sizes whatever `group_mode` says; here 1 means what the page says.
    """
    hidden = _gated(x, activate_dim, activate_left, swiglu_mode, clamp_limit, glu_alpha, glu_bias)
    name = _formats.chosen(dst_type)
    options = {"mode": round_mode, "algorithm": min(scale_alg, 1)}
    if group_index is None:
        return _mx.quantize(hidden, name, axis, **options)
    ends = group_index if group_mode == 1 else group_index.cumsum(0)
    if axis % x.dim() != x.dim() - 1:
        return _mx.by_group(hidden, ends, True, name, **options)
    used = torch.arange(math.prod(hidden.shape[:-1]), device=x.device) < ends[-1]
    kept = torch.where(used.view(*hidden.shape[:-1], 1), hidden, 0.0)
    return _mx.quantize(kept, name, axis, **options)


@npu_swiglu_mx_quant.check
def _(
    x,
    group_index,
    activate_dim,
    swiglu_mode,
    clamp_limit,
    glu_alpha,
    glu_bias,
    group_mode,
    axis,
    dst_type,
    round_mode,
    scale_alg,
    max_dtype_value,
):
    # CANN's kernel knows 0 and anything else, its tiling takes 2
    name = _mx.check(round_mode, dst_type, scale_alg, dict.fromkeys(_mx.FLOAT8, (0, 1, 2)))
    must.hold(x.numel() > 0, "x", "not empty", tuple(x.shape))
    must.anything(max_dtype_value)
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2, 7)
    dims = (-1, -2, x.dim() - 2, x.dim() - 1)
    must.choice("activate_dim", activate_dim, dims)
    must.choice("axis", axis, dims)
    must.choice("swiglu_mode", swiglu_mode, (0, 1))
    last = x.dim() - 1
    if swiglu_mode == 1:
        must.choice("activate_dim", activate_dim, (-1, last))
    must.hold(
        math.isfinite(clamp_limit) and clamp_limit > 0,
        "clamp_limit",
        "positive and finite",
        clamp_limit,
    )
    must.hold(math.isfinite(glu_alpha), "glu_alpha", "finite", glu_alpha)
    must.hold(math.isfinite(glu_bias), "glu_bias", "finite", glu_bias)
    size = x.shape[activate_dim]
    must.hold(size % 2 == 0, "x", "of an even size along 'activate_dim'", tuple(x.shape))
    width = x.shape[-1] // (2 if activate_dim % x.dim() == last else 1)
    fits = name in _mx.FLOAT8 or width % 2 == 0
    must.hold(fits, "x", f"such that the last dimension of y is even, for {name}", tuple(x.shape))
    if group_index is None:
        return
    must.choice("group_mode", group_mode, (0, 1))
    must.dtype("group_index", group_index, torch.int64, torch.int32)
    must.ndim("group_index", group_index, 1)
    groups = group_index.shape[0]
    must.hold(1 <= groups <= 256, "group_index", "of 1 to 256 groups", groups)
    if activate_dim % x.dim() != last or axis % x.dim() != last:
        must.ndim("x", x, 2)
    rows = math.prod(x.shape[:-1]) // (1 if activate_dim % x.dim() == last else 2)
    if group_mode == 1:
        _groups.check_ends("group_index", group_index, rows, whole=False)
    else:
        _groups.check_counts("group_index", group_index, rows)


npu_swiglu_mx_quant.samples = [
    Sample(lambda make: (make(4, 128, dtype=torch.bfloat16),)),
    Sample(
        lambda make: (make(3, 5, 88, dtype=torch.float16),),
        {"swiglu_mode": 1, "axis": -2, "dst_type": torch.float8_e4m3fn, "scale_alg": 1},
    ),
    Sample(
        lambda make: (make(80, 12, dtype=torch.float16),),
        lambda make: {
            "group_index": make(2, dtype=torch.int64, low=33, high=34),
            "axis": -2,
            "activate_left": True,
            "round_mode": "floor",
        },
    ),
]
