"""The constraints of npu_grouped_matmul_swiglu_quant_v2 by form; its first version shares the sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._shared import _chip, _formats
from torch_npu.ops._shared import _mx as mx_quant
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import is_transposed
from torch_npu.ops.matmul import _experts

NAMES = {
    "weight": "weight",
    "weight_dtype": "weight_dtype",
    "scale": "weight_scale",
    "per_token": "x_scale",
}

_FORMS = ("a8w8", "a8w4", "a4w4")
_FORMS_OF_950 = ("a8w8", "float8", "mx")


def mixed(rows: _experts.Rows) -> bool:
    """The microscaling form of 8-bit rows and 4-bit weights."""
    return (
        rows.mx
        and rows.x.dtype == torch.float8_e4m3fn
        and rows.x_dtype is None
        and _mx.is_float4(rows.weight, rows.weight_dtype)
    )


def check_sizes(rows: _experts.Rows) -> None:
    """The limits of the kernels of A2 and A3, and the halves of a row."""
    columns, depth = rows.columns, rows.x.shape[1]
    must.hold(columns % 2 == 0, "weight", "of an even number of columns", columns)
    if _chip.on_950():
        return
    must.hold(columns <= 10240, "weight", "of at most 10240 columns", columns)
    limit = 65536 if rows.form == "a8w8" else 20000
    must.hold(depth < limit, "x", f"of a last dimension below {limit}", depth)


def check_lists(weight: Sequence[torch.Tensor], scale: Sequence[torch.Tensor], mx: bool) -> None:
    """One tensor of all experts, or in the microscaling form one matrix for each."""
    for name, tensors in (("weight", weight), ("weight_scale", scale)):
        must.hold(len(tensors) > 0, name, "not an empty list", len(tensors), ErrCode.PARAM)
    several = mx and weight[0].dim() == 2
    if not several:
        blocks = ", or 5 in blocks (E, N / c, K / 16, 16, c)"
        dims, shape = weight[0].dim(), tuple(weight[0].shape)
        must.hold(dims in (3, 5), "weight", f"a tensor of 3 dimensions{blocks}", shape)
        if dims == 5:
            must.shape("weight", weight[0], (None, None, None, 16, None))
    count = len(weight) if several else 1
    for name, tensors, dims in (("weight", weight, 2), ("weight_scale", scale, 3)):
        expected = f"a list of {count} tensors" if several else "a list of one tensor"
        must.hold(len(tensors) == count, name, expected, len(tensors), ErrCode.PARAM)
        for tensor in tensors if several else ():
            must.ndim(name, tensor, dims)
            must.shape(name, tensor, tuple(tensors[0].shape))


def check_codes(
    rows: _experts.Rows, x_scale_dtype: int | None, weight_scale_dtype: int | None
) -> None:
    """The types that codes give to bytes."""
    for name, code in (
        ("weight_scale_dtype", weight_scale_dtype),
        ("x_scale_dtype", x_scale_dtype),
    ):
        _formats.check(name, code, "float8_e8m0fnu")
    for name, code in (("x_dtype", rows.x_dtype), ("weight_dtype", rows.weight_dtype)):
        _formats.check(name, code, *_mx.FLOAT4, "hifloat8")
    same = (rows.x_dtype is None) == (rows.weight_dtype is None) or mixed(rows)
    text = _dtypes.text(rows.weight_dtype)
    must.hold(same, "weight_dtype", "given if and only if 'x_dtype' is", text)


def check_operands(rows: _experts.Rows, names: dict[str, str], group_list: torch.Tensor) -> None:
    """Dtypes and shapes; `names` are the operator's words."""
    new = _chip.on_950()
    _experts.check(rows, names, _FORMS_OF_950 if new else _FORMS)
    check_sizes(rows)
    _experts.check_list(group_list, rows.weight.shape[0], fewer=not rows.mx)
    if not rows.mx:
        return
    columns, depth = rows.columns, _mx.shape(rows.x, rows.x_dtype)[-1]
    if mixed(rows):
        must.hold(is_transposed(rows.weight), "weight", "transposed beside 8-bit floats", "plain")
        must.hold(depth % 32 == 0, "x", "of a depth divisible by 32 with 4-bit weights", depth)
        must.hold(columns % 128 == 0, "weight", "of columns divisible by 128", columns)
    elif _mx.is_float4(rows.weight, rows.weight_dtype):
        must.hold(depth > 2, "x", "of a depth above 2 for 4-bit floats", depth)
        must.hold(columns % 4 == 0, "weight", "of columns divisible by 4", columns)


def check_extras(
    rows: _experts.Rows,
    smooth_scale: torch.Tensor | None,
    weight_assist_matrix: Sequence[torch.Tensor] | None,
) -> None:
    """What the forms of int4 take besides."""
    experts, columns = rows.weight.shape[0], rows.columns
    if rows.form != "a4w4":
        must.unset("smooth_scale", smooth_scale)
    elif smooth_scale is not None:
        must.dtype("smooth_scale", smooth_scale, torch.float32)
        allowed = ((experts, columns // 2), (experts,))
        given = tuple(smooth_scale.shape)
        must.hold(given in allowed, "smooth_scale", f"of shape {must.one_of(allowed)}", given)
    if rows.form != "a8w4":
        must.unset("weight_assist_matrix", weight_assist_matrix or None)
        return
    assist = must.present("weight_assist_matrix", weight_assist_matrix or None, "for int8 by int4")
    must.dtype("weight_assist_matrix", assist[0], torch.float32)
    must.shape("weight_assist_matrix", assist[0], (experts, columns))


def check_modes(
    rows: _experts.Rows,
    dequant_mode: int | None,
    dequant_dtype: int | None,
    quant_mode: int | None,
    quant_dtype: int | None,
) -> None:
    grouped = rows.form == "a8w4" and rows.scale.dim() == 3
    must.choice("dequant_mode", dequant_mode or 0, (2,) if rows.mx else (int(grouped),))
    must.choice("quant_mode", quant_mode or 0, (2,) if rows.mx else (0,))
    if not _chip.on_950():
        # upstream's host code hands torch.float32 (6) on as CANN's number of it, 0
        must.choice("dequant_dtype", dequant_dtype, (None, 0, 6))
        must.choice("quant_dtype", quant_dtype, (None, 0, 1))
        return
    middle = ("float32",) if rows.mx else ("float32", "float16", "bfloat16", "int8")
    _formats.check("dequant_dtype", dequant_dtype, *middle)
    results: tuple[str, ...] = ("int8", "uint8", "float8_e4m3fn", "float8_e5m2", "hifloat8")
    if rows.mx:
        results = mx_quant.FLOAT8[:1] if mixed(rows) else mx_quant.FLOAT8
        if _mx.is_float4(rows.x, rows.x_dtype):
            results = (*results, mx_quant.FLOAT4[0])
    _formats.check("quant_dtype", quant_dtype, *results)


def check_tuning(tuning_config: Sequence[int] | None) -> None:
    if _chip.on_950():
        must.unset("tuning_config", list(tuning_config or ()) or None)
    for size in tuning_config or ():
        must.hold(size >= 0, "tuning_config", "not negative", size)
