"""npu_quant_matmul_all_to_all: a quantized product, then columns exchanged for rows."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import int_product, product
from torch_npu.ops.comm import _group
from torch_npu.ops.comm import _quant_all_to_all as quant
from torch_npu.ops.comm._all_to_all import columns_to_rows


@npu_op(
    "npu_quant_matmul_all_to_all(Tensor x1, Tensor x2, str hcom, int world_size, "
    "Tensor? bias=None, Tensor? x1_scale=None, Tensor? x2_scale=None, Tensor? common_scale=None, "
    "Tensor? x1_offset=None, Tensor? x2_offset=None, int? x1_quant_mode=None, "
    "int? x2_quant_mode=None, int? common_quant_mode=None, int[]? group_sizes=None, "
    "int[]? all2all_axes=None, int? comm_quant_dtype=None, int? x1_dtype=None, int? x2_dtype=None, "
    "int? x1_scale_dtype=None, int? x2_scale_dtype=None, int? output_scale_dtype=None, "
    "int? comm_scale_dtype=None, int? y_dtype=None, str? comm_mode=None) -> Tensor",
    chips=("A2", "A5"),
    ge="MatmulAlltoAll",
    product=True,
)
def npu_quant_matmul_all_to_all(**call):
    r"""Multiplies quantized matrices and exchanges columns for rows over the ranks of a group.

    $$ y = \mathrm{alltoall}(s_1 (x_1 x_2) s_2 + b) \in R^{R M \times N / R} $$

    On Ascend950 the bias is added before the scales.

    Args:
        x1: (M, K). int8 on Atlas A2; on Ascend950 8-bit floats, or microscaled ones, also of 4 bits in bytes.
        x2: (K, N), N a multiple of the ranks R; a transposed view in the microscaling form.
        hcom: the name of the group.
        world_size: R: 2, 4 or 8, on Ascend950 also 16.
        bias: b, (N,), float32; on Atlas A2 required, and also of the dtype of the result.
        x1_scale: s1, float32 (M,), or powers of two (M, ceil(K / 64), 2).
        x2_scale: s2, float32 (N,), or powers of two (N, ceil(K / 64), 2).
        common_scale: reserved.
        x1_offset: reserved.
        x2_offset: reserved.
        x1_quant_mode: 3 (the default): a scale a row; 6: microscaled.
        x2_quant_mode: 2 (the default): a scale a column; 6: microscaled.
        common_quant_mode: 0.
        group_sizes: of the microscaling form, [1, 1, 32].
        all2all_axes: None or [-1, -2].
        comm_quant_dtype: -1.
        x1_dtype: float4_e2m1 for bytes that hold it.
        x2_dtype: the same for `x2`.
        x1_scale_dtype: float8_e8m0fnu for bytes that hold it.
        x2_scale_dtype: the same for `x2_scale`.
        output_scale_dtype: reserved.
        comm_scale_dtype: reserved.
        y_dtype: of y: float16, bfloat16, or on Ascend950 float32, the default.
        comm_mode: the engine of the card's communication; the result is the same.

    Returns:
        y, (R M, N / R).
    """
    x1, x2, bias = call["x1"], call["x2"], call["bias"]
    if call["x1_quant_mode"] == quant.MICROSCALED:
        scales = call["x1_scale"], call["x2_scale"]
        y = quant.microscaled(x1, x2, *scales, call["x1_dtype"], call["x2_dtype"], bias)
    else:
        found = int_product(x1, x2) if x1.dtype == torch.int8 else product(x1.float(), x2.float())
        y = quant.scaled(found.float(), bias, call["x1_scale"], call["x2_scale"])
    return columns_to_rows(_group.find(call["hcom"]), y.to(quant.result_dtype(call["y_dtype"])))


@npu_quant_matmul_all_to_all.check
def _(**call):
    quant.check_reserved(call, [-1, -2])
    x1, x2, ranks = call["x1"], call["x2"], call["world_size"]
    must.hold(x1.numel() > 0 and x2.numel() > 0, "x1", "not empty, as x2", tuple(x1.shape))
    columns = _mx.shape(x2, call["x2_dtype"])[1]
    must.hold(columns % ranks == 0, "x2", f"of columns divisible by {ranks}", columns)
    depth = _mx.shape(x1, call["x1_dtype"])[1]
    must.hold(depth <= quant.WIDEST, "x1", f"of at most {quant.WIDEST} columns", depth)
    must.present("x1_scale", call["x1_scale"], "(the scales of x1)")
    must.present("x2_scale", call["x2_scale"], "(the scales of x2)")
    mode = quant.PER_TOKEN if call["x1_quant_mode"] is None else call["x1_quant_mode"]
    if mode == quant.MICROSCALED:
        quant.check_chip()
        quant.check_mx(call, depth)
        quant.check_result(call, (*quant.HALF, torch.float32))
        return
    quant.check_codes(call)
    allowed = (quant.PER_TOKEN, quant.MICROSCALED) if quant.on_950() else (quant.PER_TOKEN,)
    must.choice("x1_quant_mode", mode, allowed)
    must.choice("x2_quant_mode", call["x2_quant_mode"], (None, quant.PER_CHANNEL))
    if quant.on_950():
        must.dtype("x1", x1, torch.float8_e4m3fn, torch.float8_e5m2)
        must.dtype("x2", x2, torch.float8_e4m3fn, torch.float8_e5m2)
        quant.check_result(call, (*quant.HALF, torch.float32))
        quant.check_bias(call["bias"], columns, (torch.float32,))
    else:
        must.dtype("x1", x1, torch.int8)
        must.dtype("x2", x2, torch.int8)
        quant.check_result(call, quant.HALF)
        must.present("bias", call["bias"], "on this chip")
        result = quant.result_dtype(call["y_dtype"])
        wide = (torch.float32,) if result == torch.bfloat16 else ()
        quant.check_bias(call["bias"], columns, (result, *wide))
    must.shape("x2", x2, (depth, None))
    for name, size in (("x1_scale", x1.shape[0]), ("x2_scale", columns)):
        must.dtype(name, call[name], torch.float32)
        must.shape(name, call[name], (size,))


@npu_quant_matmul_all_to_all.meta
def _(x1, x2, world_size, x2_dtype, y_dtype):
    shape = (x1.shape[0] * world_size, _mx.shape(x2, x2_dtype)[1] // world_size)
    return x1.new_empty(shape, dtype=quant.result_dtype(y_dtype))


def _int8(make, *shape):
    return make(*shape, dtype=torch.int8, low=-9, high=10)


npu_quant_matmul_all_to_all.samples = [
    Sample(
        lambda make: (_int8(make, 3, 64), _int8(make, 64, 8), "softnpu%mirror_2", 2),
        lambda make: {
            "x1_scale": make(3), "x2_scale": make(8), "bias": make(8).half(), "y_dtype": torch.float16,
        },
    ),
    Sample(
        lambda make: (_int8(make, 3, 64), _int8(make, 64, 8), "softnpu%mirror_4", 4),
        lambda make: {
            "x1_scale": make(3), "x2_scale": make(8), "bias": make(8), "y_dtype": torch.bfloat16,
            "all2all_axes": [-1, -2],
        },
    ),
]  # fmt: skip
