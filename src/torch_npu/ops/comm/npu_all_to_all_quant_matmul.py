"""npu_all_to_all_quant_matmul: rows exchanged for columns, quantized, then a product."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from torch_npu import _dtypes
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _dynamic, _formats
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._chip import on_950
from torch_npu.ops._shared._gemm import int_product, product
from torch_npu.ops._shared._packing import PER_WORD, unpack_int4
from torch_npu.ops.comm import _group
from torch_npu.ops.comm import _quant_all_to_all as quant
from torch_npu.ops.comm._all_to_all import rows_to_columns

_MAX_DEPTH = 35000  # on Atlas A2


def _exchanged(group, x: torch.Tensor) -> torch.Tensor:
    """Rows for columns, of any dtype."""
    if x.element_size() == 1:
        return rows_to_columns(group, x.view(torch.uint8)).view(x.dtype)
    return rows_to_columns(group, x)


def _format(x2: torch.Tensor, x1_quant_dtype: int | None) -> str:
    """What the exchanged rows are quantized to."""
    if x2.dtype == torch.int8:
        return "int8"
    if x2.dtype == torch.int32:
        return "int4"
    return _formats.chosen(x1_quant_dtype, "float8_e5m2")


def _quantized(x, smooth, name):
    """The values on the format's grid in fp32, and the scale of each row."""
    values = wide(x) if smooth is None else wide(x) * wide(smooth)
    order = _dynamic.QUOTIENT if on_950() else _dynamic.RATIO
    if name == "int4":  # rows need not fill whole words
        spare = -values.shape[1] % PER_WORD
        packed, scale = _dynamic.symmetric(F.pad(values, (0, spare)), name, order=order)
        return unpack_int4(packed)[:, : values.shape[1]].float(), scale
    found, scale = _dynamic.symmetric(values, name, order=order)
    return _formats.decode(found, name), scale


@npu_op(
    "npu_all_to_all_quant_matmul(Tensor x1, Tensor x2, str hcom, int world_size, *, "
    "bool all2all_out_flag=True, Tensor? bias=None, Tensor? x1_scale=None, Tensor? x2_scale=None, "
    "Tensor? common_scale=None, Tensor? x1_offset=None, Tensor? x2_offset=None, "
    "int? x1_quant_mode=None, int? x2_quant_mode=None, int? common_quant_mode=None, "
    "int[]? group_sizes=None, int[]? all2all_axes=None, int? comm_quant_dtype=None, "
    "int? x1_quant_dtype=None, int? x1_dtype=None, int? x2_dtype=None, int? x1_scale_dtype=None, "
    "int? x2_scale_dtype=None, int? output_scale_dtype=None, int? comm_scale_dtype=None, "
    "int? y_dtype=None, str? comm_mode=None) -> (Tensor, Tensor)",
    chips=("A2", "A5"),
    ge="AlltoAllMatmul",
    product=True,
)
def npu_all_to_all_quant_matmul(**call):
    r"""Exchanges rows for columns over the ranks of a group, quantizes each row, and multiplies.

    $$ p = \mathrm{alltoall}(x_1) \in R^{M / R \times R H}, \quad q_i = \mathrm{round}(p_i s / d_i), \quad
       d_i = \max |p_i s| / q_{max}, \quad y = d\, (q\, x_2)\, s_2 + b $$

    On Ascend950 the bias is added before the scales. Rows that are quantized already (`x1_quant_mode` 3 and 6) are
    multiplied as they are.

    Args:
        x1: (M, H), M a multiple of the ranks R. float16 or bfloat16; on Atlas A2 also int32, eight int4 each; on Ascend950
            also microscaled: 8-bit floats, or 4-bit floats in bytes.
        x2: (R H, N). On Atlas A2 int8, or int32 with eight int4 each along N; on Ascend950 8-bit floats, or a transposed
            view in the microscaling form.
        hcom: the name of the group.
        world_size: R: 2, 4 or 8, on Ascend950 also 16.
        all2all_out_flag: whether p is returned.
        bias: b, (N,), float32; on Atlas A2 also the dtype of the result.
        x1_scale: with mode 7 on Atlas A2 the factors s of the columns, (R H,), of the dtype of `x1`; with mode 3 the
            scales of all rows, float32 (M,); with mode 6 powers of two, (M, ceil(H / 64), 2).
        x2_scale: s2, float32 (N,), or powers of two (N, ceil(R H / 64), 2).
        common_scale: reserved.
        x1_offset: reserved.
        x2_offset: reserved.
        x1_quant_mode: 7 (the default) quantizes the rows, 3 has a scale a row, 6 is microscaled.
        x2_quant_mode: 2 (the default): a scale a column, or 6.
        common_quant_mode: 0.
        group_sizes: of the microscaling form, [1, 1, 32].
        all2all_axes: None or [-2, -1].
        comm_quant_dtype: -1.
        x1_quant_dtype: on Ascend950 what mode 7 quantizes to: float8_e5m2 (the default) or float8_e4m3fn.
        x1_dtype: float4_e2m1 for bytes that hold it.
        x2_dtype: the same for `x2`.
        x1_scale_dtype: float8_e8m0fnu for bytes that hold it.
        x2_scale_dtype: the same for `x2_scale`.
        output_scale_dtype: reserved.
        comm_scale_dtype: reserved.
        y_dtype: of y: float16, bfloat16, or on Ascend950 float32, the default.
        comm_mode: the engine of the card's communication; the result is the same.

    Returns:
        y, (M / R, N), and p, (M / R, R H), of the dtype of `x1`, or an empty tensor.
    """
    x1, x2, bias = call["x1"], call["x2"], call["bias"]
    group = _group.find(call["hcom"])
    p = _exchanged(group, x1)
    if call["x1_quant_mode"] == quant.MICROSCALED:
        scale = call["x1_scale"].view(torch.uint8).flatten(1)
        scale = rows_to_columns(group, scale).unflatten(1, (-1, 2))
        y = quant.microscaled(
            p, x2, scale, call["x2_scale"], call["x1_dtype"], call["x2_dtype"], bias
        )
    else:
        if call["x1_quant_mode"] == quant.PER_TOKEN:
            rows = p.shape[0]
            scale = call["x1_scale"][group.rank * rows : (group.rank + 1) * rows]
            values = unpack_int4(p)
        else:
            name = _format(x2, call["x1_quant_dtype"])
            values, scale = _quantized(p, call["x1_scale"], name)
        weight = unpack_int4(x2) if x2.dtype == torch.int32 else x2
        if quant.is_float8(x2):
            found = product(values, weight.float())
        else:
            found = int_product(values.to(torch.int8), weight.to(torch.int8))
        y = quant.scaled(found.float(), bias, scale, call["x2_scale"])
    out = p if call["all2all_out_flag"] else x1.new_empty(0)
    return y.to(quant.result_dtype(call["y_dtype"])), out


@npu_all_to_all_quant_matmul.check
def _(**call):
    quant.check_reserved(call, [-2, -1])
    x1, x2, ranks = call["x1"], call["x2"], call["world_size"]
    rows = tuple(x1.shape)
    must.hold(rows[0] % ranks == 0, "x1", f"of rows divisible by {ranks}", rows)
    must.hold(x1.numel() > 0 and x2.numel() > 0, "x1", "not empty, as x2", rows)
    mode = quant.DYNAMIC if call["x1_quant_mode"] is None else call["x1_quant_mode"]
    must.present("x2_scale", call["x2_scale"], "(the scales of x2)")
    if mode == quant.MICROSCALED:
        quant.check_chip()
        width = _mx.shape(x1, call["x1_dtype"])[1]
        must.hold(width % 64 == 0, "x1", "of columns divisible by 64", width)
        must.hold(
            width * ranks <= quant.WIDEST,
            "x1",
            f"of at most {quant.WIDEST // ranks} columns",
            width,
        )
        quant.check_mx(call, width * ranks)
        quant.check_result(call, (*quant.HALF, torch.float32))
        return
    quant.check_codes(call)
    must.choice("x2_quant_mode", call["x2_quant_mode"], (None, quant.PER_CHANNEL))
    if quant.on_950():
        must.choice("x1_quant_mode", mode, (quant.DYNAMIC, quant.MICROSCALED))
        must.dtype("x1", x1, *quant.HALF)
        must.dtype("x2", x2, torch.float8_e4m3fn, torch.float8_e5m2)
        must.hold(call["x1_scale"] is None, "x1_scale", "None with x1_quant_mode 7", "a tensor")
        kinds = ("float8_e5m2", "float8_e4m3fn")
        known = call["x1_quant_dtype"] is None or _dtypes.name(call["x1_quant_dtype"]) in kinds
        must.hold(known, "x1_quant_dtype", "float8_e5m2 or float8_e4m3fn", call["x1_quant_dtype"])
        depth, columns, most = rows[1] * ranks, x2.shape[1], quant.WIDEST
        quant.check_bias(call["bias"], columns, (torch.float32,))
        quant.check_result(call, (*quant.HALF, torch.float32))
    else:
        depth, columns, most = _check_a2(call, mode)
    must.hold(depth <= most, "x1", f"of a depth up to {most} over all ranks", depth)
    must.shape("x2", x2, (depth, None))
    must.dtype("x2_scale", call["x2_scale"], torch.float32)
    must.shape("x2_scale", call["x2_scale"], (columns,))


def _check_a2(call, mode):
    """The forms of Atlas A2; returns depth, columns and the largest depth."""
    x1, x2, ranks = call["x1"], call["x2"], call["world_size"]
    must.choice("x1_quant_mode", mode, (quant.PER_TOKEN, quant.DYNAMIC))
    scale = call["x1_scale"]
    columns = x2.shape[1] * (PER_WORD if x2.dtype == torch.int32 else 1)
    allowed: tuple[torch.dtype, ...]
    if mode == quant.PER_TOKEN:
        must.dtype("x1", x1, torch.int32)
        must.dtype("x2", x2, torch.int32)
        must.present("x1_scale", scale, "with x1_quant_mode 3")
        must.dtype("x1_scale", scale, torch.float32)
        must.shape("x1_scale", scale, (x1.shape[0],))
        depth, allowed = x1.shape[1] * ranks * PER_WORD, quant.HALF
    else:
        must.dtype("x1", x1, *quant.HALF)
        must.dtype("x2", x2, torch.int8, torch.int32)
        depth, allowed = x1.shape[1] * ranks, (x1.dtype,)
        must.hold(depth % 16 == 0, "x1", "of a depth over all ranks divisible by 16", depth)
        must.dtype("x1_scale", scale, x1.dtype)
        must.shape("x1_scale", scale, (depth,))
    must.unset("x1_quant_dtype", call["x1_quant_dtype"])
    quant.check_result(call, allowed)
    result = quant.result_dtype(call["y_dtype"])
    quant.check_bias(call["bias"], columns, (result, torch.float32))
    return depth, columns, _MAX_DEPTH


@npu_all_to_all_quant_matmul.meta
def _(x1, x2, world_size, all2all_out_flag, x2_dtype, y_dtype):
    rows, width = x1.shape[0] // world_size, x1.shape[1] * world_size
    columns = x2.shape[1] * PER_WORD if x2.dtype == torch.int32 else _mx.shape(x2, x2_dtype)[1]
    y = x1.new_empty((rows, columns), dtype=quant.result_dtype(y_dtype))
    return y, x1.new_empty((rows, width) if all2all_out_flag else (0,))


def _int8(make, *shape):
    return make(*shape, dtype=torch.int8, low=-9, high=10)


def _int4(make, *shape):
    """Eight int4 to an element."""
    return make(*shape, dtype=torch.int32, low=-(2**31), high=2**31)


npu_all_to_all_quant_matmul.samples = [
    Sample(
        lambda make: (make(4, 16).half(), _int8(make, 32, 8), "softnpu%mirror_2", 2),
        lambda make: {
            "x2_scale": make(8), "x1_scale": make(32).half(), "bias": make(8), "y_dtype": torch.float16,
        },
    ),
    Sample(
        lambda make: (_int4(make, 4, 2), _int4(make, 32, 1), "softnpu%mirror_2", 2),
        lambda make: {
            "x1_quant_mode": 3, "x1_scale": make(4), "x2_scale": make(8), "y_dtype": torch.bfloat16,
            "all2all_out_flag": False,
        },
    ),
]  # fmt: skip
