"""npu_kronecker_quant: matrices between two small ones (FlatQuant), then quantization to 4 bits."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import quotient
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _formats, _mx


def _is_float4(dst_dtype):
    return _formats.chosen(dst_dtype, "int4") == _mx.FLOAT4[0]


@npu_op(
    "npu_kronecker_quant(Tensor x, Tensor kronecker_p1, Tensor kronecker_p2, float? clip_ratio=None, "
    "int? dst_dtype=None, float? dst_type_max=None) -> (Tensor out, Tensor quant_scale)",
    chips=("A2", "A3", "A5"),
    product=True,
)
def npu_kronecker_quant(x, kronecker_p1, kronecker_p2, clip_ratio, dst_dtype, dst_type_max):
    r"""Multiplies each matrix of a batch from both sides and quantizes the product to 4 bits.

    $$ Y_m = P_1 x_m P_2 $$

    For int4 each matrix has one scale, $\max |Y_m| \cdot clip / 7$; for float4_e2m1 each 32 elements of its rows in
    order share a power of two, as by `npu_dynamic_mx_quant`. Each product is rounded to the dtype of `x`.

    Args:
        x: (M, N1, N2) with M up to 262144 and N1 and N2 up to 256, none 0; float16 or bfloat16; N2 a multiple of 8, for
            4-bit floats of 2.
        kronecker_p1: $P_1$, (N1, N1), the dtype of `x`.
        kronecker_p2: $P_2$, (N2, N2), the dtype of `x`.
        clip_ratio: int4: in (0, 1]; None is 1.
        dst_dtype: int32 or None, eight int4 to a word; on Ascend950 also float4_e2m1fn_x2.
        dst_type_max: float4_e2m1fn_x2: what the largest magnitude of 32 may become, 6 to 12; 0 or None follow the
            OCP MX specification.

    Returns:
        int4: int32 (M, N1, N2 / 8) and float32 (M). float4_e2m1: float4_e2m1fn_x2 (M, N1 * N2 / 2) and
        float8_e8m0fnu (M, ceil(N1 * N2 / 64), 2).
    """
    first = torch.matmul(x.float(), kronecker_p2.float()).to(x.dtype).float()
    y = torch.matmul(kronecker_p1.float(), first)
    if _is_float4(dst_dtype):
        limit = dst_type_max or 0.0
        flat = y.to(x.dtype).flatten(1)
        algorithm = 2 if limit else 0
        q, scale = _mx.quantize(
            flat, _mx.FLOAT4[0], algorithm=algorithm, limit=limit, coarse=x.dtype
        )
        return q.view(*_dtypes.FLOAT4 or [torch.uint8]), scale.view(torch.float8_e8m0fnu)
    # flat_quant_vec.h: the second product and the scaled values are float16 for bfloat16, too; multiplied by 7 / max
    y = y.half().float()
    top = y.abs().amax((1, 2))
    ratio = y.new_tensor(1.0 if clip_ratio is None else clip_ratio)
    factor = quotient(7, ratio) / torch.where(top == 0, 1.0, top)
    scaled = (y * factor.view(-1, 1, 1)).half().float()
    return _formats.encode(scaled, "int4"), top * ratio / 7


@npu_kronecker_quant.check
def _(x, kronecker_p1, kronecker_p2, clip_ratio, dst_dtype, dst_type_max):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 3)
    count, height, width = x.shape
    fits = 0 < count <= 262144 and 0 < height <= 256 and 0 < width <= 256
    expected = "of sizes above 0, up to 262144, 256 and 256"
    must.hold(fits, "x", expected, tuple(x.shape), ErrCode.PARAM)
    for name, matrix, size in (
        ("kronecker_p1", kronecker_p1, height),
        ("kronecker_p2", kronecker_p2, width),
    ):
        must.same_dtype(name, matrix, "x", x)
        must.shape(name, matrix, (size, size))
    types = ("int32", "int4", _mx.FLOAT4[0]) if _chip.on_950() else ("int32", "int4")
    _formats.check("dst_dtype", dst_dtype, *types)
    step = 2 if _is_float4(dst_dtype) else 8
    must.hold(
        width % step == 0, "x", f"of a last dimension divisible by {step}", width, ErrCode.PARAM
    )
    ratio = 1.0 if clip_ratio is None else clip_ratio
    must.hold(0 < ratio <= 1, "clip_ratio", "in (0, 1]", clip_ratio)
    if _is_float4(dst_dtype):
        _mx.check_limit("dst_type_max", dst_type_max or 0.0, _mx.FLOAT4[0])
    else:
        must.choice("dst_type_max", dst_type_max, (None, 0.0))


npu_kronecker_quant.samples = [
    Sample(
        lambda make: (
            make(3, 4, 16, dtype=torch.float16),
            make(4, 4, dtype=torch.float16),
            make(16, 16, dtype=torch.float16),
        ),
        {"clip_ratio": 0.75},
    ),
    Sample(
        lambda make: (
            make(1, 3, 8, dtype=torch.bfloat16),
            make(3, 3, dtype=torch.bfloat16),
            make(8, 8, dtype=torch.bfloat16),
        )
    ),
]
