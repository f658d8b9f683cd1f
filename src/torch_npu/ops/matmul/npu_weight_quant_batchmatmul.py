"""npu_weight_quant_batchmatmul: floats times an int8 or int4 weight that is restored on the way."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import (
    FLOAT8,
    antiquantize,
    is_transposed,
    matrix_shape,
    product,
    restored,
    stand_in,
)
from torch_npu.ops._shared._scales import PACKED, requantize, scale_of

_LIMIT = 65535


def _is_float4(weight, code):
    """Words from npu_convert_weight_to_int4pack, or bytes with a code: 4-bit floats."""
    return weight.dtype == torch.float32 or _mx.is_float4(weight, code)


def _bytes(weight):
    """The bytes of 4-bit floats, two to a byte, along the contiguous dimension of the weight."""
    if weight.dtype != torch.float32:
        return weight
    lying = is_transposed(weight)
    packed = (weight.mT if lying else weight).contiguous().view(torch.uint8)
    return packed.mT if lying else packed


def _check_float4(x, weight, scale, offset, group):
    """The microscaling weight of Ascend950: float4_e2m1 and a power of two for 32 of K."""
    fits = chips.current().family == "A5"
    must.hold(fits, "weight", "of integers on this chip", weight.dtype, ErrCode.TYPE)
    must.ndim("weight", weight, 2)
    plain = weight.is_contiguous() or is_transposed(weight)
    must.hold(plain, "weight", "contiguous or the transpose of it", weight.stride())
    per_word = 8 if weight.dtype == torch.float32 else 2
    depth, columns = weight.shape
    depth, columns = (
        (depth * per_word, columns) if is_transposed(weight) else (depth, columns * per_word)
    )
    must.hold(depth == x.shape[-1], "weight", f"of K {x.shape[-1]}, as 'x'", depth)
    must.hold(group == _mx.BLOCK, "antiquant_group_size", f"{_mx.BLOCK} for 4-bit floats", group)
    must.dtype("antiquant_scale", scale, torch.uint8, torch.float8_e8m0fnu)
    must.shape("antiquant_scale", scale, (-(-depth // group), columns))
    must.hold(offset is None, "antiquant_offset", "None for 4-bit floats", "a tensor")
    return columns


def _check_antiquant(x, weight, scale, offset, group):
    depth, columns = matrix_shape(weight)
    must.dtype("antiquant_scale", scale, torch.float16, torch.bfloat16, torch.int64)
    shapes: list[tuple[int, ...]] = [(1,), (1, 1), (columns,), (1, columns)]
    if group:
        shapes = [(-(-depth // group), columns)]
    expected = "of shape " + must.one_of(shapes)
    must.hold(tuple(scale.shape) in shapes, "antiquant_scale", expected, tuple(scale.shape))
    if scale.dtype == torch.int64:
        older = chips.current().family == "310P"
        must.hold(not older, "antiquant_scale", "of dtype torch.float16 on this chip", scale.dtype)
        must.hold(x.dtype == torch.float16, "x", "float16 with an int64 'antiquant_scale'", x.dtype)
        lying = weight.dtype == torch.int8 and is_transposed(weight)
        expected = "int8 and transposed with an int64 'antiquant_scale'"
        must.hold(lying, "weight", expected, f"{weight.dtype} of strides {weight.stride()}")
        must.hold(x.shape[-2] <= 96, "x", "of 1 to 96 rows with an int64 scale", x.shape[-2])
        aligned = depth % 64 == 0 and columns % 64 == 0
        must.hold(aligned, "weight", "of K and N that are multiples of 64", (depth, columns))
    else:
        must.same_dtype("antiquant_scale", scale, "x", x)
    if offset is not None:
        want = torch.int32 if scale.dtype == torch.int64 else scale.dtype
        must.dtype("antiquant_offset", offset, want)
        must.shape("antiquant_offset", offset, tuple(scale.shape))


def _bias_types(x, floating):
    """The dtypes of a bias; `floating` weights are those of 8-bit and 4-bit floats."""
    if x.dtype != torch.bfloat16:
        return (torch.float16,)
    if chips.current().family != "A5":
        return (torch.float32,)
    return (torch.bfloat16,) if floating else (torch.bfloat16, torch.float32)


def _check_result(columns, quant_scale, quant_offset, bias, x, antiquant_scale, floating):
    shapes = [(1,), (columns,), (1, columns)]
    if quant_scale is None:
        must.hold(quant_offset is None, "quant_offset", "None without 'quant_scale'", "a tensor")
    else:
        older = chips.current().family == "310P"
        must.hold(not older, "quant_scale", "None on this chip", tuple(quant_scale.shape))
        packed = antiquant_scale.dtype == torch.int64
        must.hold(not packed, "quant_scale", "None with an int64 'antiquant_scale'", "a tensor")
        must.dtype("quant_scale", quant_scale, torch.float32, *PACKED)
        fits, expected = tuple(quant_scale.shape) in shapes, "of shape " + must.one_of(shapes)
        must.hold(fits, "quant_scale", expected, tuple(quant_scale.shape))
        must.dtype("quant_offset", quant_offset, torch.float32)
        must.shape("quant_offset", quant_offset, tuple(quant_scale.shape))
    if bias is not None:
        must.dtype("bias", bias, *_bias_types(x, floating))
        fits = tuple(bias.shape) in shapes[1:]
        must.hold(fits, "bias", "of shape " + must.one_of(shapes[1:]), tuple(bias.shape))


@npu_op(
    "npu_weight_quant_batchmatmul(Tensor x, Tensor weight, Tensor antiquant_scale, "
    "Tensor? antiquant_offset=None, Tensor? quant_scale=None, Tensor? quant_offset=None, "
    "Tensor? bias=None, int antiquant_group_size=0, int inner_precise=0, int? weight_dtype=None) -> Tensor",
    ge="WeightQuantBatchMatmulV2",
    product=True,
)
def npu_weight_quant_batchmatmul(
    x,
    weight,
    antiquant_scale,
    antiquant_offset,
    quant_scale,
    quant_offset,
    bias,
    antiquant_group_size,
    weight_dtype,
):
    r"""A product with a quantized weight, whose result may be quantized too.

    $$ y = x \cdot \big((\mathrm{weight} + \mathrm{antiquant\_offset}) \cdot
       \mathrm{antiquant\_scale}\big) + \mathrm{bias}, \qquad
       y_{int8} = \mathrm{sat}(\mathrm{rint}(y \cdot \mathrm{quant\_scale} + \mathrm{quant\_offset})) $$

    Args:
        x: (*, M, K), float16 or bfloat16 (310P: float16); a transposed view is fine.
        weight: (*, K, N) int8, or int4 eight to an int32: (K, N / 8), or (K / 8, N) as the
            transpose of a contiguous (N, K / 8). On Ascend950 also float8_e4m3fn, float8_e5m2,
            hifloat8, and float4_e2m1 as `npu_convert_weight_to_int4pack` packs float32 or as bytes
            with `weight_dtype`.
        antiquant_scale: (1,) or (1, 1) for the tensor, (N,) or (1, N) by column, (ceil(K / group),
            N) by group; the dtype of `x`, or int64 from `npu_trans_quant_param` (by column, M <=
            96, K and N multiples of 64, `weight` int8 and transposed).
            4-bit floats: powers of two, bytes or float8_e8m0fnu, (ceil(K / 32), N), group 32.
        antiquant_offset: of the shape and dtype of `antiquant_scale`; int32 where that is int64.
        quant_scale: (1,), (N,) or (1, N), float32, or int64 that holds the offset as well.
        quant_offset: float32 like `quant_scale`; an int64 `quant_scale` carries its own offset.
        bias: (N,) or (1, N); float16 for float16 `x`, float32 for bfloat16; on Ascend950 also
            bfloat16 for it, and for weights of floats that alone.
        antiquant_group_size: 0, or a multiple of 32 from 32 to K - 1.
        inner_precise: 0 or 1 (the fast mode of the card); the result is the accurate one in both.
        weight_dtype: on Ascend950, hifloat8, float4_e2m1fn_x2 or float4_e1m2fn_x2: the bytes of
            `weight` are such.

    Returns:
        y of shape (*, M, N) in the dtype of `x`, or int8 with `quant_scale`.

    Constraints:
        K and N from 1 to 65535 on A2 and A3, as M of a transposed `x`. As on the card, the restored weight is rounded to the dtype of `x`
        (unless the scale is packed), `quant_scale` is cut to 19 bits and `quant_offset` is
        rounded to a whole number of 9 bits.
    """
    if _is_float4(weight, weight_dtype):
        code = _dtypes.CODES[_mx.FLOAT4[0]] if weight_dtype is None else weight_dtype
        weight, scale = _mx.values(_bytes(weight), code), _mx.powers(antiquant_scale)
    else:
        packed = antiquant_scale.dtype in PACKED
        scale = scale_of(antiquant_scale) if packed else antiquant_scale
        weight = restored(weight, weight_dtype)
    y = product(x, antiquantize(weight, scale, antiquant_offset, antiquant_group_size))
    if bias is not None:
        y = y + bias
    return y.to(x.dtype) if quant_scale is None else requantize(y, quant_scale, quant_offset)


@npu_weight_quant_batchmatmul.check
def _(
    x,
    weight,
    antiquant_scale,
    antiquant_offset,
    quant_scale,
    quant_offset,
    bias,
    antiquant_group_size,
    inner_precise,
    weight_dtype,
):
    older = chips.current().family == "310P"
    must.dtype("x", x, torch.float16, *(() if older else (torch.bfloat16,)))
    must.ndim("x", x, 2, 6)
    must.choice("inner_precise", inner_precise, (0, 1))
    if _is_float4(weight, weight_dtype):
        columns = _check_float4(x, weight, antiquant_scale, antiquant_offset, antiquant_group_size)
        _check_result(columns, quant_scale, quant_offset, bias, x, antiquant_scale, True)
        return
    weight = stand_in("weight", "weight_dtype", weight, weight_dtype)
    floats = FLOAT8 if chips.current().family == "A5" else ()
    must.dtype("weight", weight, torch.int8, *(() if older else (torch.int32,)), *floats)
    must.ndim("weight", weight, 2, 6)
    must.hold(x.numel() > 0, "x", "not empty", tuple(x.shape))
    must.hold(weight.numel() > 0, "weight", "not empty", tuple(weight.shape))
    depth, columns = matrix_shape(weight)
    must.hold(depth == x.shape[-1], "weight", f"of K {x.shape[-1]}, as 'x'", depth)
    if chips.current().family not in ("310P", "A5"):
        fits = max(depth, columns) <= _LIMIT
        must.hold(fits, "weight", f"of K and N up to {_LIMIT}", (depth, columns))
        fits = x.shape[-2] <= _LIMIT or not is_transposed(x)
        must.hold(fits, "x", f"of an M up to {_LIMIT} where it is transposed", x.shape[-2])
    both = min(x.dim(), weight.dim()) > 2
    same = not both or x.shape[:-2] == weight.shape[:-2]
    must.hold(same, "weight", f"of batch {tuple(x.shape[:-2])}, as 'x'", tuple(weight.shape[:-2]))
    group = antiquant_group_size
    fits = group == 0 or (32 <= group <= depth - 1 and group % 32 == 0)
    must.hold(
        fits, "antiquant_group_size", f"0 or a multiple of 32 up to K - 1 ({depth - 1})", group
    )
    _check_antiquant(x, weight, antiquant_scale, antiquant_offset, group)
    floating = weight.is_floating_point()
    _check_result(columns, quant_scale, quant_offset, bias, x, antiquant_scale, floating)


npu_weight_quant_batchmatmul.samples = [
    Sample(
        lambda make: (
            make(4, 32, dtype=torch.float16),
            make(32, 16, dtype=torch.int8, low=-8, high=8),
            make(1, 16, dtype=torch.float16),
            make(1, 16, dtype=torch.float16),
        )
    ),
    Sample(
        lambda make: (
            make(4, 64, dtype=torch.bfloat16),
            make(64, 2, dtype=torch.int32, low=-(2**31), high=2**31),
            make(2, 16, dtype=torch.bfloat16),
        ),
        lambda make: {"bias": make(16), "antiquant_group_size": 32},
    ),
    Sample(
        lambda make: (
            make(4, 32, dtype=torch.float16),
            make(16, 32, dtype=torch.int8, low=-8, high=8).mT,
            make(16, dtype=torch.float16),
        ),
        lambda make: {"quant_scale": make(16), "quant_offset": make(16, low=-9, high=9)},
    ),
]
