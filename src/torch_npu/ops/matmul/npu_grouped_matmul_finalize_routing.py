"""npu_grouped_matmul_finalize_routing: experts' products added to the rows of their tokens."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _formats
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import is_transposed
from torch_npu.ops._shared._indices import first_bad
from torch_npu.ops.matmul import _experts
from torch_npu.ops.matmul._swiglu_rules import mixed

_NAMES = {
    "weight": "w",
    "weight_dtype": "w_dtype",
    "scale": "scale",
    "per_token": "pertoken_scale",
}


def _rows(x, w, scale, bias, pertoken_scale, x_dtype, w_dtype, scale_dtype, offset=None):
    mx = _mx.asked(scale_dtype, scale)
    assist = None if _chip.on_950() else bias
    return _experts.Rows(x, w, scale, pertoken_scale, assist, x_dtype, w_dtype, mx, offset)


def _check_sizes(rows):
    """The blocks of the kernels: those of A2 and A3, and of 4-bit floats."""
    depth, columns = rows.x.shape[1], rows.columns
    if rows.mx:
        depth = _mx.shape(rows.x, rows.x_dtype)[-1]
        if mixed(rows):
            must.hold(is_transposed(rows.weight), "w", "transposed beside 8-bit floats", "plain")
            step = "of depths and columns divisible by 32 beside 8-bit floats"
            must.hold(depth % 32 == columns % 32 == 0, "w", step, (depth, columns))
        elif _mx.is_float4(rows.x, rows.x_dtype):
            must.hold(depth > 2, "x", "of a depth above 2 for 4-bit floats", depth)
        return
    if _chip.on_950():
        return
    if rows.form == "a8w8":
        fits = depth % 16 == 0 and columns % 32 == 0 and columns >= 256
        expected = "of depths divisible by 16 and at least 256 columns, divisible by 32"
    else:
        fits = depth % 64 == 0 and depth > 128 and columns % 8 == 0 and columns > 64
        expected = "of depths above 128, divisible by 64, and columns above 64, divisible by 8"
    must.hold(fits, "w", expected, (depth, columns), ErrCode.PARAM)


def _check_extras(rows, bias, logit, row_index):
    new, count = _chip.on_950(), rows.x.shape[0]
    if new or rows.form == "a8w4":
        must.dtype("bias", bias, torch.bfloat16 if new else torch.float32)
        must.shape("bias", bias, (rows.weight.shape[0], rows.columns))
    else:
        must.unset("bias", bias)
    if new:
        must.present("logit", logit, "on Ascend950")
    must.dtype("logit", logit, torch.float32)
    must.shape("logit", logit, (count,))
    narrow = (torch.int32,) if rows.form == "a8w8" else ()
    must.dtype("row_index", row_index, torch.int64, *narrow)
    must.shape("row_index", row_index, (count,))


@npu_op(
    "npu_grouped_matmul_finalize_routing(Tensor x, Tensor w, Tensor group_list, *, "
    "Tensor? scale=None, Tensor? bias=None, Tensor? offset=None, Tensor? pertoken_scale=None, "
    "Tensor? shared_input=None, Tensor? logit=None, Tensor? row_index=None, "
    "ScalarType? dtype=None, float? shared_input_weight=1.0, int? shared_input_offset=0, "
    "int? output_bs=0, int? group_list_type=1, int[]? tuning_config=None, int? x_dtype=None, "
    "int? w_dtype=None, int? scale_dtype=None, int? pertoken_scale_dtype=None) -> Tensor",
    product=True,
)
def npu_grouped_matmul_finalize_routing(
    x,
    w,
    group_list,
    scale,
    bias,
    offset,
    pertoken_scale,
    shared_input,
    logit,
    row_index,
    shared_input_weight,
    shared_input_offset,
    output_bs,
    group_list_type,
    x_dtype,
    w_dtype,
    scale_dtype,
):
    r"""Rows in groups times their expert's weight, weighted and added to the rows of their tokens.

    $$ c = (x\, w_e) \cdot scale_e \cdot pertoken, \qquad y_{row(i)} \mathrel{+}= logit_i \cdot c_i, \qquad
       y_{offset + j} \mathrel{+}= weight \cdot shared_j $$

    Args:
        x: (M, K): int8; on Ascend950 8-bit floats or bytes with two float4_e2m1.
        w: (E, K, N): int8, or int32 with eight int4 each; on Ascend950 as `x`, or 4-bit floats beside float8_e4m3fn,
            perhaps the transpose of a contiguous one.
        group_list: (E) int64; rows past the last group do not count.
        scale: (E, N) float32 or bfloat16; for int4 (E, 1, N) int64, packed by `npu_trans_quant_param`; on Ascend950
            (E, 1, N) or bytes of powers of two, (E, ceil(K / 64), N, 2).
        bias: for int4 (E, N) float32, added before `pertoken_scale`; on Ascend950 (E, N) bfloat16, added after it.
        offset: for int4 (E, 1, N) float32, times the sum of a row of x added before `pertoken_scale`.
        pertoken_scale: (M) float32, None for 1; beside powers of two such bytes, (M, ceil(K / 64), 2).
        shared_input: (B', N) bfloat16, added to the rows from `shared_input_offset` on.
        logit: (M) float32, factors of the rows; required on Ascend950.
        row_index: (M), int64, for int8 by int8 also int32: to which row of y each row of the product goes; required.
        dtype: float32.
        shared_input_weight: the factor of `shared_input`.
        shared_input_offset: its first row.
        output_bs: how many rows y has, at most M; 0 is M.
        group_list_type: 1 sizes (the default), 0 ends.
        tuning_config: the expected number of rows of a group, at most M; changes no result.
        x_dtype, w_dtype: float4_e2m1fn_x2 or hifloat8 for such bytes.
        scale_dtype, pertoken_scale_dtype: float8_e8m0fnu for bytes of powers of two.

    Returns:
        y of shape (output_bs, N), float32.

    Constraints:
        A2 and A3: K a multiple of 16 and N of 32, N at least 256; for int4 K a multiple of 64 above 128, N of 8 above 64.

    Differs from upstream:
        Upstream takes int8 weights in the format NZ alone; here ND is the same.
    """
    rows = _rows(x, w, scale, bias, pertoken_scale, x_dtype, w_dtype, scale_dtype, offset)
    y = x.new_zeros(output_bs or x.shape[0], rows.columns, dtype=torch.float32)

    new = _chip.on_950()

    def finish(group, product):
        part = slice(group.start, group.start + group.size)
        if new and bias is not None:
            product = product + bias[group.weight].float()
        if logit is not None:
            product = product * logit[part].unsqueeze(-1)
        y.index_add_(0, row_index[part].long(), product)

    kind = 1 if group_list_type is None else group_list_type
    rows.run("npu_grouped_matmul_finalize_routing", group_list, kind, finish)
    if shared_input is not None:
        start = shared_input_offset or 0
        factor = 1.0 if shared_input_weight is None else shared_input_weight
        y[start : start + shared_input.shape[0]] += shared_input.float() * factor
    return y


@npu_grouped_matmul_finalize_routing.meta
def _(x, w, scale, pertoken_scale, output_bs, x_dtype, w_dtype, scale_dtype):
    rows = _rows(x, w, scale, None, pertoken_scale, x_dtype, w_dtype, scale_dtype)
    return x.new_empty(output_bs or x.shape[0], rows.columns, dtype=torch.float32)


@npu_grouped_matmul_finalize_routing.check
def _(
    x,
    w,
    group_list,
    scale,
    bias,
    offset,
    pertoken_scale,
    shared_input,
    logit,
    row_index,
    dtype,
    shared_input_weight,
    shared_input_offset,
    output_bs,
    group_list_type,
    tuning_config,
    x_dtype,
    w_dtype,
    scale_dtype,
    pertoken_scale_dtype,
):
    must.present("scale", scale, "always")
    must.present("row_index", row_index, "always")
    for name, code in (
        ("scale_dtype", scale_dtype),
        ("pertoken_scale_dtype", pertoken_scale_dtype),
    ):
        _formats.check(name, code, "float8_e8m0fnu")
    for name, code in (("x_dtype", x_dtype), ("w_dtype", w_dtype)):
        _formats.check(name, code, _mx.FLOAT4[0], "hifloat8")
    rows = _rows(x, w, scale, bias, pertoken_scale, x_dtype, w_dtype, scale_dtype)
    same = (x_dtype is None) == (w_dtype is None) or mixed(rows)
    must.hold(same, "w_dtype", "given if and only if 'x_dtype' is", _dtypes.text(w_dtype))
    new = _chip.on_950()
    if rows.mx:
        _mx.check_chip("scale_dtype")
        must.present("pertoken_scale", pertoken_scale, "beside powers of two")
    forms = ("mx", "a8w8", "float8") if new else ("a8w8", "a8w4")
    _experts.check(rows, _NAMES, forms, single=new or rows.form == "a8w4")
    if rows.form == "a8w8":
        must.dtype("scale", scale, torch.float32, torch.bfloat16)
    elif rows.form == "float8" and x_dtype is None:
        must.dtype("x", x, torch.float8_e4m3fn)
    if rows.form != "a8w4":
        must.unset("offset", offset)
    must.dtype("offset", offset, torch.float32)
    must.shape("offset", offset, (w.shape[0], 1, rows.columns))
    _check_sizes(rows)
    experts, columns, count = w.shape[0], rows.columns, x.shape[0]
    _experts.check_list(group_list, experts)
    must.choice("group_list_type", group_list_type, (None, 0, 1))
    must.choice("dtype", dtype, (None, torch.float32))
    _check_extras(rows, bias, logit, row_index)
    high = output_bs or count
    expected = "0 or positive" if new else f"from 0 to {count}, the rows of 'x'"
    must.hold(high > 0 and (new or high <= count), "output_bs", expected, output_bs)
    if must.has_data(row_index):
        index = row_index.cpu().long()
        first_bad("row_index", f"in [0, {high})", index, (index < 0) | (index >= high))
    if shared_input is not None:
        must.dtype("shared_input", shared_input, torch.bfloat16)
        must.shape("shared_input", shared_input, (None, columns))
        start = shared_input_offset or 0
        fits = start >= 0 and start + shared_input.shape[0] <= high
        expected = f"such that the rows of 'shared_input' lie within the {high} of the result"
        must.hold(fits, "shared_input_offset", expected, start, ErrCode.PARAM)
    for size in () if new else (tuning_config or ())[:1]:
        expected = f"from 0 to {count}, the rows of 'x'"
        must.hold(0 <= size <= count, "tuning_config", expected, size)
    factor = 1.0 if shared_input_weight is None else shared_input_weight
    must.hold(factor == factor, "shared_input_weight", "a number", shared_input_weight)


npu_grouped_matmul_finalize_routing.samples = [
    Sample(
        lambda make: (
            make(7, 16, dtype=torch.int8, low=-9, high=9),
            make(2, 16, 256, dtype=torch.int8, low=-9, high=9),
            make(2, dtype=torch.int64, low=3, high=4),
        ),
        lambda make: {
            "scale": make(2, 256, low=0),
            "pertoken_scale": make(7, low=0),
            "logit": make(7, seed=4),
            "row_index": make(7, dtype=torch.int64, low=0, high=5),
            "shared_input": make(3, 256, dtype=torch.bfloat16),
            "shared_input_weight": 0.5,
            "shared_input_offset": 1,
            "output_bs": 5,
        },
    )
]
