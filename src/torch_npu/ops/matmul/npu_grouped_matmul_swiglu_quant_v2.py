"""npu_grouped_matmul_swiglu_quant_v2: experts' products, SwiGLU, quantization."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _dynamic
from torch_npu.ops._shared import _mx as mx_quant
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._chip import on_950
from torch_npu.ops._shared._gemm import is_transposed
from torch_npu.ops.matmul import _experts
from torch_npu.ops.matmul import _swiglu_rules as _rules
from torch_npu.ops.matmul._swiglu_rules import NAMES as _NAMES


def _is_mx(x_scale, weight_scale, x_scale_dtype, weight_scale_dtype):
    asked = _mx.asked(weight_scale_dtype, weight_scale[0] if weight_scale else None)
    return asked or _mx.asked(x_scale_dtype, x_scale)


def _gate(y, limit=0.0):
    act, gate = y.chunk(2, -1)
    if limit > 0:
        act, gate = act.clamp(max=limit), gate.clamp(-limit, limit)
    return torch.nn.functional.silu(act) * gate


def quantized_rows(operator, rows, group_list, kind, smooth, name, order=_dynamic.PLAIN, limit=0.0):
    """(q, scale): SwiGLU of each group's product, quantized row by row; rows of no group are 0.

    A positive limit clamps the activated half from above and the other one on both sides.
    """
    count, width = rows.x.shape[0], rows.columns // 2
    hidden = rows.x.new_zeros(count, width, dtype=torch.float32)

    def finish(group, y):
        out = _gate(y, limit)
        if smooth is not None:
            out = out * smooth[group.weight].float()
        hidden[group.start : group.start + group.size] = out

    rows.run(operator, group_list, kind, finish)
    return _dynamic.symmetric(hidden, name, order=order)


def _quantized_blocks(operator, rows, group_list, kind, name):
    count, width = rows.x.shape[0], rows.columns // 2
    hidden = rows.x.new_zeros(count, width, dtype=torch.float32)

    def finish(group, y):
        hidden[group.start : group.start + group.size] = _gate(y)

    rows.run(operator, group_list, kind, finish)
    # the kernel keeps the activation in float32 up to its blocks
    return mx_quant.quantize(hidden, name)


def _name(quant_dtype, mx):
    found = None if quant_dtype is None else _dtypes.name(quant_dtype)
    return found if mx or (found and found != "uint8") else "int8"


def from_blocks(weight):
    """(E, K, N) of NZ blocks that are written out, (E, N / c, K / 16, 16, c); other weights as they are."""
    if weight.dim() != 5:
        return weight
    return weight.permute(0, 2, 3, 1, 4).flatten(3, 4).flatten(1, 2).contiguous()


def _joined(tensors, dims):
    """All experts in one tensor of so many dimensions; a list has a matrix for each."""
    first = tensors[0]
    if first.dim() == dims:
        return first
    if first.dim() == 5:
        return from_blocks(first)
    # 4-bit floats lie two to a byte along the contiguous dimension, which stays so
    if dims == 3 and is_transposed(first):
        return torch.stack([t.mT for t in tensors]).mT
    return torch.stack(list(tensors))


def _rows(x, weight, weight_scale, x_scale, assist, x_dtype, weight_dtype, mx):
    return _experts.Rows(
        x,
        _joined(weight, 3),
        _joined(weight_scale, 4) if mx else weight_scale[0],
        x_scale,
        assist[0] if assist else None,
        x_dtype,
        weight_dtype,
        mx,
    )


@npu_op(
    "npu_grouped_matmul_swiglu_quant_v2(Tensor x, Tensor[] weight, Tensor[] weight_scale, "
    "Tensor x_scale, Tensor group_list, *, Tensor? smooth_scale=None, "
    "Tensor[]? weight_assist_matrix=None, Tensor? bias=None, int? dequant_mode=0, "
    "int? dequant_dtype=0, int? quant_mode=0, int? quant_dtype=1, int? group_list_type=0, "
    "int[]? tuning_config=None, int? x_dtype=None, int? weight_dtype=None, "
    "int? weight_scale_dtype=None, int? x_scale_dtype=None) -> (Tensor, Tensor)",
    product=True,
)
def npu_grouped_matmul_swiglu_quant_v2(
    x,
    weight,
    weight_scale,
    x_scale,
    group_list,
    smooth_scale,
    weight_assist_matrix,
    quant_dtype,
    group_list_type,
    x_dtype,
    weight_dtype,
    weight_scale_dtype,
    x_scale_dtype,
):
    r"""Rows in groups times their expert's weight, through SwiGLU, quantized again.

    $$ c = (x\, w_e) \cdot s_w \cdot s_x, \qquad h = \frac{a}{1 + e^{-a}} \cdot b \cdot smooth_e
       \quad \text{for the halves } a, b \text{ of } c $$

    and either a scale for each row, $\max |h| / DTYPE\_MAX$, or (MX) a power of two for each 32 elements as
    `npu_dynamic_mx_quant` with `scale_alg` 0.

    | products | x | weight | weight_scale | x_scale | chips |
    |---|---|---|---|---|---|
    | A8W8 | int8 | int8 | (E, N) float32, float16 or bfloat16 | (M) float32 | all |
    | A8W4 | int8 | int32, eight int4 each | (E, N) or (E, G, N), packed | (M) float32 | A2, A3 |
    | A4W4 | int32, eight int4 each | the same | (E, N) packed or float32 | (M) float32 | A2, A3 |
    | float8 | float8_e4m3fn, float8_e5m2, hifloat8 | likewise | (E, N) float32 or bfloat16 | (M) float32 | Ascend950 |
    | MX | float8, float4_e2m1 | likewise, or float4 beside float8_e4m3fn | (E, ceil(K / 64), N, 2) bytes | (M, ceil(K / 64), 2) bytes | Ascend950 |

    Args:
        x: (M, K).
        weight: one tensor (E, K, N), N even, perhaps the transpose of a contiguous one, or its NZ blocks written out,
            (E, N / c, K / 16, 16, c); MX also E matrices (K, N).
        weight_scale, x_scale: see the table; one tensor in the list, or one for each matrix.
        group_list: int64, at most E numbers (MX: E): where each group of rows ends, or how many it has; rows past the
            last are 0.
        smooth_scale: A4W4: (E, N / 2) or (E), float32.
        weight_assist_matrix: A8W4: one tensor (E, N) float32, added before `x_scale`; required.
        bias: reserved.
        dequant_mode: 0; A8W4 with (E, G, N) scales 1; MX 2.
        dequant_dtype: 0; on Ascend950, where 0 is refused, float32, float16, bfloat16 or int8 (MX: float32).
        quant_mode: 0 a scale for each row, 2 MX.
        quant_dtype: int8 (the default, and 0); on Ascend950 also float8_e4m3fn, float8_e5m2, hifloat8, and for MX
            the 8-bit floats and from 4-bit floats float4_e2m1fn_x2.
        group_list_type: 0 ends, 1 sizes.
        tuning_config: the expected number of rows of a group; changes no result. None on Ascend950.
        x_dtype, weight_dtype: for bytes that hold float4_e2m1fn_x2 or hifloat8, both or none, but for float4 weights
            beside float8_e4m3fn.
        weight_scale_dtype, x_scale_dtype: float8_e8m0fnu for MX.

    Returns:
        The quantized (M, N / 2), 4-bit floats as float4_e2m1fn_x2, and its scales: (M) float32, or
        (M, ceil(N / 128), 2) float8_e8m0fnu.

    Constraints:
        A2 and A3: N up to 10240, K below 65536 (A8W8) or 20000. MX with 4-bit floats: N a multiple of 4 and K above 2;
        beside float8_e4m3fn a transposed weight, N a multiple of 128 and K of 32.

    Differs from upstream:
        On A2 and A3, A8W8 takes weights in the format NZ alone; here ND is the same. A tensor that was cast to NZ lies in
        its natural order here, so that a view of it as blocks has other numbers than on the card.
    """
    mx = _is_mx(x_scale, weight_scale, x_scale_dtype, weight_scale_dtype)
    rows = _rows(x, weight, weight_scale, x_scale, weight_assist_matrix, x_dtype, weight_dtype, mx)
    name, kind = _name(quant_dtype, mx), group_list_type or 0
    operator = "npu_grouped_matmul_swiglu_quant_v2"
    if not mx:
        order = _order(weight[0].dtype)
        return quantized_rows(operator, rows, group_list, kind, _broad(smooth_scale), name, order)
    return _typed(name, *_quantized_blocks(operator, rows, group_list, kind, name))


def _order(weight_dtype):
    """How the kernels quantize: by a division, but those of A2 and A3 for int4 weights (packed in int32)."""
    return _dynamic.HALF if weight_dtype == torch.int32 and not on_950() else _dynamic.QUOTIENT


def _typed(name, y, scale):
    """The bytes as upstream's host code types them: 4-bit floats and scales have dtypes of their own."""
    if name == "float4_e2m1fn_x2":
        y = y.view(getattr(torch, name, torch.uint8))  # torch has the type since 2.8
    return y, scale.view(torch.float8_e8m0fnu)


def _broad(smooth):
    return smooth.unsqueeze(-1) if smooth is not None and smooth.dim() == 1 else smooth


@npu_grouped_matmul_swiglu_quant_v2.meta
def _(
    x,
    weight,
    weight_scale,
    x_scale,
    quant_dtype,
    x_dtype,
    weight_dtype,
    weight_scale_dtype,
    x_scale_dtype,
):
    mx = _is_mx(x_scale, weight_scale, x_scale_dtype, weight_scale_dtype)
    rows = _rows(x, weight, weight_scale, x_scale, None, x_dtype, weight_dtype, mx)
    hidden = x.new_zeros(x.shape[0], rows.columns // 2, dtype=torch.float32)
    name = _name(quant_dtype, mx)
    if not mx:
        return _dynamic.symmetric(hidden, name)
    return _typed(name, *mx_quant.quantize(hidden, name))


@npu_grouped_matmul_swiglu_quant_v2.check
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
    group_list_type,
    tuning_config,
    x_dtype,
    weight_dtype,
    weight_scale_dtype,
    x_scale_dtype,
):
    must.unset("bias", bias)
    mx = _is_mx(x_scale, weight_scale, x_scale_dtype, weight_scale_dtype)
    if mx:
        _mx.check_chip("weight_scale_dtype")
    _rules.check_lists(weight, weight_scale, mx)
    rows = _rows(x, weight, weight_scale, x_scale, weight_assist_matrix, x_dtype, weight_dtype, mx)
    _rules.check_codes(rows, x_scale_dtype, weight_scale_dtype)
    _rules.check_operands(rows, _NAMES, group_list)
    must.choice("group_list_type", group_list_type, (None, 0, 1))
    _rules.check_extras(rows, smooth_scale, weight_assist_matrix)
    _rules.check_modes(rows, dequant_mode, dequant_dtype, quant_mode, quant_dtype)
    _rules.check_tuning(tuning_config)


def _ints(make, *shape):
    return make(*shape, dtype=torch.int8, low=-9, high=9)


def _list(make):
    return make(2, dtype=torch.int64, low=3, high=4)


npu_grouped_matmul_swiglu_quant_v2.samples = [
    Sample(
        lambda make: (
            _ints(make, 7, 16),
            [_ints(make, 2, 16, 8)],
            [make(2, 8, low=0)],
            make(7, low=0),
            _list(make),
        ),
        {"group_list_type": 1},
    ),
    Sample(
        lambda make: (
            make(7, 2, dtype=torch.int32, low=-(2**31), high=2**31 - 1),
            [make(2, 16, 1, dtype=torch.int32, low=-(2**31), high=2**31 - 1)],
            [make(2, 8, low=0)],
            make(7, low=0),
            _list(make),
        ),
        lambda make: {"smooth_scale": make(2, 4, low=0), "tuning_config": [4]},
    ),
]
