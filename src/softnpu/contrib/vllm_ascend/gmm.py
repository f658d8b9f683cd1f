"""Quantized experts of `_C_ascend`: the up projection of each expert's rows, SwiGLU, and int8 again.

Weights in the format NZ are the same here. `bias` of the first three is the assisting matrix of 4-bit weights.
"""

from __future__ import annotations

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _chip, _dynamic
from torch_npu.ops.matmul import _experts
from torch_npu.ops.matmul._swiglu_rules import NAMES
from torch_npu.ops.matmul.npu_grouped_matmul_swiglu_quant_v2 import _broad, quantized_rows

__all__ = [
    "grouped_matmul_swiglu_quant",
    "grouped_matmul_swiglu_quant_v2",
    "grouped_matmul_swiglu_quant_weight_nz",
    "grouped_matmul_swiglu_quant_weight_nz_tensor_list",
]

FORMS = ("a8w8", "a8w4", "a4w4")
_PLAIN = (
    "(Tensor x, Tensor weight, Tensor weight_scale, Tensor x_scale, Tensor group_list, *, "
    "Tensor? bias=None, Tensor? offset=None, float swiglu_limit=0.0) -> "
    "(Tensor output, Tensor output_scale, Tensor output_offset)"
)
_LISTS = _PLAIN.replace("Tensor weight", "Tensor[] weight")


def _run(name, x, weight, scale, x_scale, group_list, assist, limit, kind=0, smooth=None):
    rows = _experts.Rows(x, weight, scale, x_scale, assist)
    int8 = rows.form == "a8w8" and not _chip.on_950()
    order = _dynamic.HALF if int8 else _dynamic.PLAIN
    return quantized_rows(name, rows, group_list, kind, _broad(smooth), "int8", order, limit)


def _shapes(x, scale):
    width = scale.shape[-1] // 2
    return x.new_empty(x.shape[0], width, dtype=torch.int8), x.new_empty(
        x.shape[0], dtype=torch.float32
    )


def _check(x, weight, scale, x_scale, group_list, assist, name, limit):
    rows = _experts.Rows(x, weight, scale, x_scale, assist)
    _experts.check(rows, NAMES, FORMS)
    experts, columns = weight.shape[0], rows.columns
    must.hold(columns % 2 == 0, "weight", "of an even number of columns", columns)
    _experts.check_list(group_list, experts)
    if rows.form == "a8w4":
        must.present(name, assist, "for int8 rows and int4 weights")
        must.dtype(name, assist, torch.float32)
        must.shape(name, assist, (experts, columns))
    else:
        must.unset(name, assist)
    must.hold(limit >= 0, "swiglu_limit", "not negative", limit)
    return rows


def stacked(tensors, dims):
    """One tensor for all experts, of one such tensor or of one for each."""
    if len(tensors) == 1 and tensors[0].dim() >= dims:
        return tensors[0]
    return torch.stack([t if t.dim() < dims else t.squeeze(0) for t in tensors])


@ascend_op(f"grouped_matmul_swiglu_quant{_PLAIN}", product=True)
def grouped_matmul_swiglu_quant(x, weight, weight_scale, x_scale, group_list, bias, swiglu_limit):
    """`npu_grouped_matmul_swiglu_quant`, also with int4 weights; a positive limit clamps before the activation."""
    name = "grouped_matmul_swiglu_quant"
    found = _run(name, x, weight, weight_scale, x_scale, group_list, bias, swiglu_limit)
    return *found, x.new_empty((), dtype=torch.float32)


@ascend_op(f"grouped_matmul_swiglu_quant_weight_nz{_PLAIN}", product=True)
def grouped_matmul_swiglu_quant_weight_nz(
    x, weight, weight_scale, x_scale, group_list, bias, swiglu_limit
):
    """The same with weights in the format NZ."""
    name = "grouped_matmul_swiglu_quant_weight_nz"
    found = _run(name, x, weight, weight_scale, x_scale, group_list, bias, swiglu_limit)
    return *found, x.new_empty((), dtype=torch.float32)


def _plain_meta(x, weight_scale):
    return *_shapes(x, weight_scale), x.new_empty((), dtype=torch.float32)


def _plain_check(x, weight, weight_scale, x_scale, group_list, bias, offset, swiglu_limit):
    must.unset("offset", offset)
    _check(x, weight, weight_scale, x_scale, group_list, bias, "bias", swiglu_limit)


for operator in (grouped_matmul_swiglu_quant, grouped_matmul_swiglu_quant_weight_nz):
    operator.meta(_plain_meta)
    operator.check(_plain_check)


@ascend_op(f"grouped_matmul_swiglu_quant_weight_nz_tensor_list{_LISTS}", product=True)
def grouped_matmul_swiglu_quant_weight_nz_tensor_list(
    x, weight, weight_scale, x_scale, group_list, bias, swiglu_limit
):
    """The same with a list of weights, one for each expert."""
    found = _run(
        "grouped_matmul_swiglu_quant_weight_nz_tensor_list", x, stacked(weight, 3),
        stacked(weight_scale, 2), x_scale, group_list, bias, swiglu_limit,
    )  # fmt: skip
    return *found, x.new_empty(x.shape[0], dtype=torch.float32)


@grouped_matmul_swiglu_quant_weight_nz_tensor_list.meta
def _(x, weight_scale):
    return *_shapes(x, weight_scale[0]), x.new_empty(x.shape[0], dtype=torch.float32)


@grouped_matmul_swiglu_quant_weight_nz_tensor_list.check
def _(x, weight, weight_scale, x_scale, group_list, bias, offset, swiglu_limit):
    must.unset("offset", offset)
    for name, tensors in (("weight", weight), ("weight_scale", weight_scale)):
        same = len(tensors) > 0 and len({tuple(t.shape) for t in tensors}) == 1
        must.hold(same, name, "a list of tensors of one shape", [tuple(t.shape) for t in tensors])
    _check(
        x, stacked(weight, 3), stacked(weight_scale, 2), x_scale, group_list, bias, "bias",
        swiglu_limit,
    )  # fmt: skip


@ascend_op(
    "grouped_matmul_swiglu_quant_v2(Tensor x, Tensor[] weight, Tensor[] weight_scale, "
    "Tensor x_scale, Tensor group_list, Tensor? smooth_scale=None, "
    "Tensor[]? weight_assist_matrix=None, Tensor? bias=None, int? dequant_mode=0, "
    "int? dequant_dtype=0, int? quant_mode=0, int? quant_dtype=0, bool transpose_weight=False, "
    "int group_list_type=0, int[2] tuning_config=[], float swiglu_limit=0.0) -> "
    "(Tensor output, Tensor output_scale)",
    product=True,
)
def grouped_matmul_swiglu_quant_v2(
    x,
    weight,
    weight_scale,
    x_scale,
    group_list,
    smooth_scale,
    weight_assist_matrix,
    group_list_type,
    swiglu_limit,
):
    """`npu_grouped_matmul_swiglu_quant_v2` with int8 results and a limit; `transpose_weight` has no effect."""
    assist = weight_assist_matrix[0] if weight_assist_matrix else None
    return _run(
        "grouped_matmul_swiglu_quant_v2", x, weight[0], weight_scale[0], x_scale, group_list,
        assist, swiglu_limit, group_list_type, smooth_scale,
    )  # fmt: skip


@grouped_matmul_swiglu_quant_v2.meta
def _(x, weight_scale):
    return _shapes(x, weight_scale[0])


@grouped_matmul_swiglu_quant_v2.check
def _(
    x,
    weight,
    weight_scale,
    x_scale,
    group_list,
    smooth_scale,
    weight_assist_matrix,
    bias,
    dequant_mode,
    dequant_dtype,
    quant_mode,
    quant_dtype,
    transpose_weight,
    group_list_type,
    tuning_config,
    swiglu_limit,
):
    must.unset("bias", bias)
    must.anything(transpose_weight, tuning_config)
    must.choice("dequant_dtype", dequant_dtype or 0, (0,))
    must.choice("dequant_mode", dequant_mode or 0, (0, 1))
    for name, value in (("quant_mode", quant_mode), ("quant_dtype", quant_dtype)):
        must.choice(name, value or 0, (0,))
    must.choice("group_list_type", group_list_type, (0, 1))
    for name, tensors in (("weight", weight), ("weight_scale", weight_scale)):
        must.hold(len(tensors) == 1, name, "a list of one tensor", len(tensors))
    assist = weight_assist_matrix[0] if weight_assist_matrix else None
    rows = _check(
        x, weight[0], weight_scale[0], x_scale, group_list, assist, "weight_assist_matrix",
        swiglu_limit,
    )  # fmt: skip
    if rows.form != "a4w4":
        must.unset("smooth_scale", smooth_scale)
    elif smooth_scale is not None:
        experts = weight[0].shape[0]
        allowed = ((experts, rows.columns // 2), (experts,))
        fits = tuple(smooth_scale.shape) in allowed
        must.hold(fits, "smooth_scale", f"of shape {must.one_of(allowed)}", smooth_scale.shape)
