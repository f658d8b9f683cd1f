"""npu_rotate_quant: blocks of the last dimension times a matrix, then quantization."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _dynamic, _formats, _mx

_ALGORITHMS = {"float4_e2m1fn_x2": (0, 2)}
_MX = (*_mx.FLOAT8, _mx.FLOAT4[0])


def _clipped(y, alpha):
    """Each 32 elements of a row within alpha of their largest magnitude, where alpha lies in (0, 1)."""
    blocks = _mx.blocks_of(y)
    limit = blocks.abs().amax(-1, keepdim=True) * alpha
    clipped = blocks.clamp(-limit, limit).flatten(-2)[..., : y.shape[-1]]
    return torch.where((alpha > 0) & (alpha < 1), clipped, y)


@npu_op(
    "npu_rotate_quant(Tensor x, Tensor rotation, *, Tensor? alpha=None, int? dst_dtype=None, "
    'int? axis=-1, str? round_mode="rint", int? scale_alg=0, float? dst_type_max=0.0, '
    "bool? transpose_y=False) -> (Tensor, Tensor)",
    product=True,
)
def npu_rotate_quant(x, rotation, alpha, dst_dtype, round_mode, scale_alg, dst_type_max):
    r"""Multiplies each K elements of a row by a matrix, clips, and quantizes the result.

    $$ Y = (x.reshape(\ast, K)\, R).reshape(M, N), \qquad
       Y \leftarrow \mathrm{clamp}(Y, -\alpha \max_{32} |Y|, \alpha \max_{32} |Y|) \text{ for } 0 < \alpha < 1 $$

    The product is rounded to the dtype of `x`. Integers have a scale for each row, as `npu_dynamic_quant`; floats are
    quantized as by `npu_dynamic_mx_quant`.

    Args:
        x: (M, N); float16 or bfloat16. On Ascend950 1 to 7 dimensions.
        rotation: R, (K, K), the dtype of `x`; N is a multiple of K. On Ascend950 also (N / K, K, K), one for each block.
        alpha: on Ascend950, (1) bfloat16: the part of the largest magnitude that stays; else None.
        dst_dtype: int8 (the default) or quint4x2; on Ascend950 float4_e2m1fn_x2, float8_e5m2 or float8_e4m3fn.
        axis: the last dimension.
        round_mode: "rint"; for float4_e2m1fn_x2 also "round" and "floor".
        scale_alg, dst_type_max: as for `npu_dynamic_mx_quant`.
        transpose_y: False.

    Returns:
        y in the shape of `x` (quint4x2: int32 with an eighth of the last dimension, 4-bit floats two to a uint8), and
        the scales: (M) in float32, or bytes as float8_e8m0fnu.

    Constraints:
        Integers: N a multiple of 8 from 128 to 16000, K from 16 to 1024. Ascend950: K is 32, 64 or 128.
    """
    size = rotation.shape[-1]
    blocks = x.float().unflatten(-1, (-1, size))
    if rotation.dim() == 2:
        turned = torch.matmul(blocks, rotation.float())
    else:
        turned = torch.matmul(blocks.unsqueeze(-2), rotation.float()).squeeze(-2)
    turned = turned.flatten(-2).to(x.dtype)
    if alpha is not None:
        turned = _clipped(turned.float(), alpha.float()).to(x.dtype)
    name = _formats.chosen(dst_dtype)
    if name not in _MX:
        return _dynamic.symmetric(turned.float(), name, order=_dynamic.PRODUCT)
    y, scale = _mx.quantize(
        turned,
        name,
        mode=round_mode or "rint",
        algorithm=scale_alg or 0,
        limit=dst_type_max or 0.0,
        coarse=x.dtype,
    )
    return y, scale.view(torch.float8_e8m0fnu)


@npu_rotate_quant.check
def _(x, rotation, alpha, dst_dtype, axis, round_mode, scale_alg, dst_type_max, transpose_y):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    new = _chip.on_950()
    must.ndim("x", x, 1 if new else 2, 7 if new else 2)
    must.same_dtype("rotation", rotation, "x", x)
    must.ndim("rotation", rotation, 2, 3 if new else 2)
    width, size = x.shape[-1], rotation.shape[-1]
    fits = size > 0 and width % size == 0
    must.hold(fits, "x", f"of a last dimension divisible by {size}", tuple(x.shape), ErrCode.PARAM)
    whole = (size, size) if rotation.dim() == 2 else (width // size, size, size)
    must.shape("rotation", rotation, whole)
    if new:
        must.hold(size in (32, 64, 128), "rotation", "of 32, 64 or 128 columns", size)
        must.dtype("alpha", alpha, torch.bfloat16)
        must.shape("alpha", alpha, (1,))
    else:
        must.hold(16 <= size <= 1024, "rotation", "of 16 to 1024 columns", size)
        long = width % 8 == 0 and 128 <= width <= 16000
        must.hold(long, "x", "of a last dimension divisible by 8, from 128 to 16000", width)
        must.unset("alpha", alpha)
    must.hold(not transpose_y, "transpose_y", "False", transpose_y, ErrCode.PARAM)
    allowed = _MX if new else ("int8", "int4")
    _formats.check("dst_dtype", dst_dtype, *allowed)
    name = _formats.chosen(dst_dtype)
    expected = f"the type {must.one_of(allowed)}"
    must.hold(name in allowed, "dst_dtype", expected, dst_dtype, ErrCode.TYPE)
    _formats.check_packing("x", x, name)
    must.choice("axis", -1 if axis is None else axis, (-1, x.dim() - 1))
    if name in _MX:
        _mx.check(round_mode or "rint", dst_dtype, scale_alg or 0, _ALGORITHMS, _MX)
        limit = dst_type_max or 0.0
        free = scale_alg == 2
        expected = "from 6 to 12 for scale_alg 2, else 0"
        must.hold(6 <= limit <= 12 if free else limit == 0, "dst_type_max", expected, limit)
        return
    must.choice("round_mode", round_mode, (None, "rint"))
    must.choice("scale_alg", scale_alg, (None, 0))
    must.choice("dst_type_max", dst_type_max, (None, 0.0))


npu_rotate_quant.samples = [
    Sample(lambda make: (make(4, 128, dtype=torch.bfloat16), make(16, 16, dtype=torch.bfloat16))),
    Sample(
        lambda make: (make(4, 192, dtype=torch.float16), make(32, 32, dtype=torch.float16)),
        {"dst_dtype": torch.quint4x2},
    ),
]
