"""npu_swiglu_mx_quant_with_dual_axis: SwiGLU, then microscaling formats along both axes."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats, _mx
from torch_npu.ops._shared import _quant_groups as _groups


@npu_op(
    "npu_swiglu_mx_quant_with_dual_axis(Tensor x, *, Tensor? group_index=None, "
    'bool activate_left=True, str round_mode="rint", int scale_alg=1, int dst_type=24, '
    "float dst_type_max=0) -> (Tensor, Tensor, Tensor, Tensor)",
    chips=("A5",),
)
def npu_swiglu_mx_quant_with_dual_axis(
    x, group_index, activate_left, round_mode, scale_alg, dst_type
):
    r"""SwiGLU of the halves of the last dimension, rounded to the dtype of `x`, quantized along each of its two axes.

    $$ h = \frac{a}{1 + e^{-a}} \cdot b $$

    Blocks of 32 and their scales are those of `npu_dynamic_mx_quant`; along the rows no block reaches past its group.

    Args:
        x: (M, 2 N); float16 or bfloat16; N even for 4-bit floats.
        group_index: int64, the end of each group's rows: positive and non-decreasing, the last one is M.
        activate_left: whether $a$ is the first half.
        round_mode: "rint"; for 4-bit floats also "round" and "floor".
        scale_alg: 0; for 8-bit floats also 1, the default.
        dst_type: float8_e4m3fn (the default), float8_e5m2, float4_e2m1fn_x2 or float4_e1m2.
        dst_type_max: of no effect for these algorithms.

    Returns:
        y1 (M, N) and the scales of the last axis, (M, ceil(N / 64), 2); y2 (M, N) and the scales along the rows,
        (ceil(M / 64), N, 2), with groups (M // 64 + groups, N, 2) as `npu_grouped_dynamic_mx_quant`.

    Constraints:
        Ascend950.
    """
    first, second = x.float().chunk(2, -1)
    act, gate = (first, second) if activate_left else (second, first)
    hidden = (torch.nn.functional.silu(act) * gate).to(x.dtype)
    name = _formats.chosen(dst_type)
    options = {"mode": round_mode, "algorithm": scale_alg}
    if group_index is None:
        rows = _mx.quantize(hidden, name, 0, **options)
    else:
        rows = _mx.by_group(hidden, group_index, False, name, **options)
    return (*_mx.quantize(hidden, name, -1, **options), *rows)


@npu_swiglu_mx_quant_with_dual_axis.check
def _(x, group_index, round_mode, scale_alg, dst_type, dst_type_max):
    name = _mx.check(round_mode, dst_type, scale_alg)
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2)
    step = 2 * _formats.per_item(name)
    must.hold(
        x.shape[-1] % step == 0, "x", f"of a last dimension divisible by {step}", tuple(x.shape)
    )
    must.hold(x.numel() > 0, "x", "not empty", tuple(x.shape))
    must.hold(dst_type_max >= 0, "dst_type_max", "0 or positive", dst_type_max)
    if group_index is None:
        return
    must.dtype("group_index", group_index, torch.int64)
    must.ndim("group_index", group_index, 1)
    must.hold(
        group_index.shape[0] > 0, "group_index", "of at least one group", group_index.shape[0]
    )
    _groups.check_ends("group_index", group_index, x.shape[0])


npu_swiglu_mx_quant_with_dual_axis.samples = [
    Sample(lambda make: (make(40, 80, dtype=torch.bfloat16),)),
    Sample(
        lambda make: (make(70, 24, dtype=torch.float16),),
        lambda make: {
            "group_index": make(1, dtype=torch.int64, low=70, high=71),
            "activate_left": False,
            "dst_type": 296,
            "scale_alg": 0,
            "round_mode": "round",
        },
    ),
]
