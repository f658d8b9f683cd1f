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
def npu_rotate_quant(x, rotation, alpha, dst_dtype, axis, round_mode, scale_alg, dst_type_max):
    r"""Multiplies each K elements of a row by a matrix, clips, and quantizes the result.

    $$ Y = (x.reshape(\ast, K)\, R).reshape(M, N), \qquad
       Y \leftarrow \mathrm{clamp}(Y, -\alpha \max_{32} |Y|, \alpha \max_{32} |Y|) \text{ for } 0 < \alpha < 1 $$

    The product is rounded to the dtype of `x`. Integers have a scale for each row, as `npu_dynamic_quant`; floats are
    quantized as by `npu_dynamic_mx_quant`.

    Args:
        x: (M, N); float16 or bfloat16.
        rotation: R, (K, K), the dtype of `x`; N is a multiple of K.
        alpha: one element, the part of the largest magnitude that stays.
        dst_dtype: int8 (the default) or quint4x2; on Ascend950 float4_e2m1fn_x2, float8_e5m2 or float8_e4m3fn.
        axis: the axis of the blocks of floats; -1 for integers.
        round_mode: "rint"; for float4_e2m1fn_x2 also "round" and "floor".
        scale_alg, dst_type_max: as for `npu_dynamic_mx_quant`.
        transpose_y: False.

    Returns:
        y in the shape of `x` (quint4x2: int32 with an eighth of the last dimension, 4-bit floats two to a uint8), and
        the scales: (M) in float32, or bytes as float8_e8m0fnu.
    """
    size = rotation.shape[-1]
    turned = torch.matmul(x.float().unflatten(-1, (-1, size)), rotation.float()).flatten(-2)
    turned = turned.to(x.dtype)
    if alpha is not None:
        turned = _clipped(turned.float(), alpha.float()).to(x.dtype)
    name = _formats.chosen(dst_dtype)
    if name not in _MX:
        return _dynamic.symmetric(turned.float(), name)
    axis = -1 if axis is None else axis
    last = axis % x.dim() == x.dim() - 1
    y, scale = _mx.quantize(
        turned,
        name,
        axis,
        mode=round_mode or "rint",
        algorithm=scale_alg or 0,
        limit=dst_type_max or 0.0,
        coarse=x.dtype if last else None,
    )
    return y, scale.view(torch.float8_e8m0fnu)


@npu_rotate_quant.check
def _(x, rotation, alpha, dst_dtype, axis, round_mode, scale_alg, dst_type_max, transpose_y):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2)
    must.same_dtype("rotation", rotation, "x", x)
    must.ndim("rotation", rotation, 2)
    size = rotation.shape[0]
    must.shape("rotation", rotation, (size, size))
    fits = size > 0 and x.shape[-1] % size == 0
    must.hold(fits, "x", f"of a last dimension divisible by {size}", tuple(x.shape), ErrCode.PARAM)
    if alpha is not None:
        must.hold(alpha.numel() == 1, "alpha", "of one element", tuple(alpha.shape), ErrCode.PARAM)
    must.hold(not transpose_y, "transpose_y", "False", transpose_y, ErrCode.PARAM)
    allowed = _MX if _chip.on_950() else ("int8", "int4")
    _formats.check("dst_dtype", dst_dtype, *allowed)
    name = _formats.chosen(dst_dtype)
    expected = f"the type {must.one_of(allowed)}"
    must.hold(name in allowed, "dst_dtype", expected, dst_dtype, ErrCode.TYPE)
    _formats.check_packing("x", x, name)
    axis = -1 if axis is None else axis
    must.hold(-2 <= axis < 2, "axis", "from -2 to 1", axis)
    if name in _MX:
        _mx.check(round_mode or "rint", dst_dtype, scale_alg or 0, _ALGORITHMS, _MX)
        _mx.check_limit("dst_type_max", dst_type_max or 0.0, name)
        return
    must.choice("axis", axis, (-1, 1))
    must.choice("round_mode", round_mode, (None, "rint"))
    must.choice("scale_alg", scale_alg, (None, 0))
    must.choice("dst_type_max", dst_type_max, (None, 0.0))


npu_rotate_quant.samples = [
    Sample(lambda make: (make(4, 32, dtype=torch.bfloat16), make(8, 8, dtype=torch.bfloat16))),
    Sample(
        lambda make: (make(4, 48, dtype=torch.float16), make(16, 16, dtype=torch.float16)),
        lambda make: {"alpha": make(1, low=0.5, high=0.9), "dst_dtype": torch.quint4x2},
    ),
]
