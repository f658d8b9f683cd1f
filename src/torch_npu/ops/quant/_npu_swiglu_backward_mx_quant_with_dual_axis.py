"""_npu_swiglu_backward_mx_quant_with_dual_axis: the gradient of SwiGLU, then a microscaling format along both axes."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops import _native
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats, _mx
from torch_npu.ops._shared import _quant_groups as _groups


@npu_op(
    "_npu_swiglu_backward_mx_quant_with_dual_axis(Tensor x, Tensor y_grad, *, "
    'Tensor? group_index=None, bool activate_left=True, str round_mode="rint", int scale_alg=1, '
    "int dst_type=24, float dst_type_max=0) -> (Tensor, Tensor, Tensor, Tensor)",
    chips=("A5",),
)
def _npu_swiglu_backward_mx_quant_with_dual_axis(
    x, y_grad, group_index, activate_left, round_mode, scale_alg, dst_type
):
    r"""The gradient of `npu_swiglu`, rounded to the dtype of `x`, quantized along each of the last two axes.

    $$ dA = dy \cdot B\, \sigma(A) (1 + A - A \sigma(A)), \qquad dB = dy \cdot A\, \sigma(A) $$

    Blocks of 32 and their scales are those of `npu_dynamic_mx_quant`; along the rows no block reaches past its group.

    Args:
        x: (..., M, 2 N), A and B its halves; float16 or bfloat16.
        y_grad: dy, (..., M, N), of the dtype of `x`.
        group_index: int64, the end of each group's rows; for two dimensions.
        activate_left: whether A is the first half.
        round_mode: "rint".
        scale_alg: 1.
        dst_type: float8_e4m3fn.
        dst_type_max: 0.

    Returns:
        y1 (..., M, 2 N) and the scales of the last axis, (..., M, ceil(2 N / 64), 2); y2 and the scales along the rows,
        (..., ceil(M / 64), 2 N, 2), with groups (M // 64 + groups, 2 N, 2) as `npu_grouped_dynamic_mx_quant`.

    Constraints:
        Ascend950.
    """
    return _quantized(
        _mx.quantize, x, y_grad, group_index, activate_left, round_mode, scale_alg, dst_type
    )


def _quantized(run, x, y_grad, group_index, activate_left, round_mode, scale_alg, dst_type):
    first, second = x.float().chunk(2, -1)
    a, b = (first, second) if activate_left else (second, first)
    dy, gate = y_grad.float(), torch.sigmoid(a)
    da, db = dy * b * gate * (1 + a - a * gate), dy * a * gate
    dx = torch.cat((da, db) if activate_left else (db, da), -1).to(x.dtype)
    name, options = _formats.chosen(dst_type), {"mode": round_mode, "algorithm": scale_alg}
    if group_index is None:
        rows = run(dx, name, -2, **options)
    else:
        rows = _mx.by_group(dx, group_index, False, name, run=run, **options)
    return (*run(dx, name, -1, **options), *rows)


@_npu_swiglu_backward_mx_quant_with_dual_axis.native
def _(x, y_grad, group_index, activate_left, round_mode, scale_alg, dst_type):
    if not _native.floats(x):
        return NotImplemented
    return _quantized(
        _mx.native, x, y_grad, group_index, activate_left, round_mode, scale_alg, dst_type
    )


@_npu_swiglu_backward_mx_quant_with_dual_axis.check
def _(x, y_grad, group_index, round_mode, scale_alg, dst_type, dst_type_max):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2, 6)
    expected = "of a last dimension divisible by 64"
    must.hold(x.shape[-1] % 64 == 0, "x", expected, tuple(x.shape))
    must.hold(x.numel() > 0, "x", "not empty", tuple(x.shape))
    must.same_dtype("y_grad", y_grad, "x", x)
    must.shape("y_grad", y_grad, (*x.shape[:-1], x.shape[-1] // 2))
    _formats.check("dst_type", dst_type, "float8_e4m3fn")
    must.choice("round_mode", round_mode, ("rint",))
    must.choice("scale_alg", scale_alg, (1,))
    must.unset("dst_type_max", dst_type_max, 0)
    if group_index is None:
        return
    must.ndim("x", x, 2)
    must.dtype("group_index", group_index, torch.int64)
    must.ndim("group_index", group_index, 1)
    must.hold(group_index.shape[0] > 0, "group_index", "of at least one group", 0)
    _groups.check_ends("group_index", group_index, x.shape[0], whole=False)


_npu_swiglu_backward_mx_quant_with_dual_axis.samples = [
    Sample(lambda make: (make(2, 40, 64, dtype=torch.bfloat16), make(2, 40, 32).bfloat16())),
    Sample(
        lambda make: (make(70, 64, dtype=torch.float16), make(70, 32, dtype=torch.float16)),
        lambda make: {
            "group_index": make(1, dtype=torch.int64, low=70, high=71),
            "activate_left": False,
        },
    ),
]
