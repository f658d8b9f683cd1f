"""npu_quant_matmul: the product of quantized matrices, exact, scaled back or to int8."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops._shared._gemm import (
    dtype_of,
    int_product,
    product,
    restored,
    stand_in,
    unpack_matrix,
)
from torch_npu.ops._shared._packing import unpack_int4
from torch_npu.ops._shared._scales import packed, requantize, scale_of
from torch_npu.ops.matmul import _quant_matmul_rules as rules

#: the card multiplies int8 by int4 in two halves of x1, each value this much too low
A8W4_SHIFT = 8


def exact_product(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
    """x1 @ x2: int32 for integers (a shifted x1 may exceed int8), fp32 for 8-bit floats."""
    if x1.is_floating_point():
        return product(x1, x2)
    bound = 2**14 if x1.dtype == x2.dtype == torch.int8 else 2**15
    return int_product(x1, x2, bound)


def block_product(x1, x2, left, right, offset=None, groups=None):
    """Products of K blocks, each scaled by its own factors and summed in fp32.

    `left` has a column for each block (or one for all) and a row for each row or block of rows,
    `right` a row for each block and a column for each column or block of columns; `offset` is
    subtracted from x2. `groups` are the sizes of the blocks of rows, columns and K; 0 divides
    evenly.
    """
    depth, rows, columns = x1.shape[-1], x1.shape[-2], x2.shape[-1]
    blocks = right.shape[-2]
    group_m, group_n, group_k = groups or (0, 0, 0)
    step = group_k or -(-depth // blocks)
    total = None
    for block in range(blocks):
        part = slice(block * step, min((block + 1) * step, depth))
        a, b = x1[..., part], x2[..., part, :]
        y = exact_product(a, b).float()
        if offset is not None:
            y = y - a.float().sum(-1, keepdim=True) * offset[block].float()
        y = y * _repeat(right[..., block, :], columns, group_n).unsqueeze(-2)
        if left is not None and left.shape[-1] > 1:
            y = y * _repeat(left[..., block], rows, group_m).unsqueeze(-1)
        total = y if total is None else total + y
    assert total is not None  # check asks for a depth
    if left is not None and left.shape[-1] == 1:
        total = total * _repeat(left[..., 0], rows, group_m).unsqueeze(-1)
    return total


def _repeat(values: torch.Tensor, size: int, group: int) -> torch.Tensor:
    """Values of blocks along the last dimension, repeated to `size`."""
    blocks = values.shape[-1]
    if blocks in (1, size):
        return values
    return values.repeat_interleave(group or -(-size // blocks), -1)[..., :size]


def _finish(y, bias, dtype):
    if bias is not None:
        y = y + bias.float()
    return y.to(dtype)


@npu_op(
    "npu_quant_matmul(Tensor x1, Tensor x2, Tensor scale, *, Tensor? offset=None, "
    "Tensor? pertoken_scale=None, Tensor? bias=None, int? output_dtype=None, int? x1_dtype=None, "
    "int? x2_dtype=None, int? pertoken_scale_dtype=None, int? scale_dtype=None, int[]? group_sizes=None, "
    "Tensor? y_scale=None) -> Tensor",
    product=True,
    chips=("A2", "A3", "A5", "310P"),
)
def npu_quant_matmul(
    x1,
    x2,
    scale,
    offset,
    pertoken_scale,
    bias,
    output_dtype,
    x1_dtype,
    x2_dtype,
    scale_dtype,
    group_sizes,
):
    r"""The product of two quantized matrices, scaled back to floats or quantized to int8.

    $$ y = (x_1 \cdot x_2 + \mathrm{bias}_{int32}) \cdot \mathrm{scale} \cdot \mathrm{pertoken\_scale}
       + \mathrm{offset} + \mathrm{bias}_{float} $$

    Args:
        x1: (*, M, K) int8, or int4 eight to an int32 as a contiguous (M, K / 8); on Ascend950 also
            float8_e4m3fn and float8_e5m2.
        x2: (*, K, N) of the same type; int4 as (K, N / 8), or (K / 8, N) as the transpose of a
            contiguous (N, K / 8). int4 with an int8 `x1` is the mixed form below. Batch dimensions
            broadcast.
        scale: (1,) or (N,); float32, bfloat16 (results bfloat16 and int32), or int64 packed by
            `npu_trans_quant_param`. int4 by groups of 256 depths: (K / 256, N), K a multiple of 1024
            and N of 256. 8-bit types by blocks: (*, ceil(K / 128), ceil(N / 128)).
        offset: float32 (1,) or (N,), for int8 results. An int64 `scale` carries its own. With a
            scale by
            groups: float16 of its shape, subtracted from `x2`.
        pertoken_scale: float32 (M,), for float16 and bfloat16 results; (M, 1) by groups of int4,
            (*, M, ceil(K / 128)) or (*, ceil(M / 128), ceil(K / 128)) by blocks.
        bias: (N,), or (batch, 1, N) for results of 3 dimensions. int32 is added before scaling;
            float32, bfloat16 (bfloat16 results) and float16 (float16 results with `pertoken_scale`)
            after it.
        output_dtype: int8 (the default), float16, bfloat16 or int32; on Ascend950 also float32.
        x1_dtype, x2_dtype: on Ascend950, hifloat8: the bytes of `x1` or `x2` are such. With scales
            of powers of two float4_e2m1fn_x2 or float4_e1m2fn_x2, two to a byte along the
            contiguous dimension.
        pertoken_scale_dtype, scale_dtype: on Ascend950, float8_e8m0fnu for both: the microscaling
            form below.
        group_sizes: [group_m, group_n, group_k]: how many rows, columns and depths share a scale;
            0 takes it from the shapes of the scales. [1 or 128, 128, 128] by blocks.
        y_scale: reserved.

    Returns:
        y of shape (*, M, N). int32 is the sum itself, without `scale`.

    Constraints:
        The contiguous dimensions of `x1` and `x2` are at most 65535, but on Ascend950, and on A2 and
        A3 for int8 with `pertoken_scale`. The integer sum is exact. Without `pertoken_scale`,
        for int8 and float16 results, a float32 `scale` is cut to 19 bits and `offset` is rounded to
        a whole number of 9 bits, as `npu_trans_quant_param` does, which the card applies by itself.

        Mixed form (int8 `x1`, int4 `x2`, int64 `scale` (N,), or (K / 256, N) with
        `group_sizes` [0, 0, 256]; results float16 or bfloat16): the card computes $ (\sum_g ((x_1 - 8) x_2)_g \cdot \mathrm{scale}_g + \mathrm{offset}) \cdot
        \mathrm{pertoken\_scale} $; the float32 `offset` of shape (N,) has to hold
        $ 8 \sum_k x_2 \cdot \mathrm{scale} $ besides the user's own.

        Microscaling form (Ascend950): `x1` and `x2` are 8-bit or 4-bit floats, 32 depths share a
        scale that is a power of two: `pertoken_scale` (*, M, ceil(K / 64), 2), `scale`
        (*, ceil(K / 64), N, 2), bytes or float8_e8m0fnu; results float16, bfloat16 or float32,
        `bias` float32, no `offset`, `group_sizes` None or [1, 1, 32].

    Differs from upstream:
        A packed `scale` may be (1, N). Storage formats are tags here: NZ is not asked for whole
        blocks.
    """
    dtype = dtype_of(output_dtype, torch.int8)
    if _mx.asked(scale_dtype, scale):
        a, b = _mx.left(x1, x1_dtype, pertoken_scale), _mx.right(x2, x2_dtype, scale)
        return _finish(product(a, b), bias, dtype)
    x1, x2 = restored(x1, x1_dtype), restored(x2, x2_dtype)
    grouped = rules.by_groups(x1, x2, scale)
    mixed = x1.dtype == torch.int8 and x2.dtype == torch.int32
    a = unpack_int4(x1) if x1.dtype == torch.int32 else x1
    b = unpack_matrix(x2)
    if grouped:
        a = a.to(torch.int16) - A8W4_SHIFT if mixed else a
        left = None
        if pertoken_scale is not None:
            flat = pertoken_scale.dim() == 1
            left = pertoken_scale.unsqueeze(-1) if flat else pertoken_scale
        right = scale_of(scale)
        right = right if right.dim() > 1 else right.unsqueeze(0)
        sizes = rules.block_sizes(x1, x2, pertoken_scale, group_sizes)
        if mixed:
            y = block_product(a, b, None, right, None, sizes)
            y = y if offset is None else y + offset
            return _finish(y if left is None else y * left, None, dtype)
        return _finish(block_product(a, b, left, right, offset, sizes), bias, dtype)
    y = exact_product(a, b)
    if bias is not None and bias.dtype == torch.int32:
        y, bias = y + bias, None
    if dtype == torch.int32:
        return y
    scale = scale.reshape(-1)
    if dtype == torch.int8:
        return requantize(y, scale, offset)
    if pertoken_scale is not None:
        return _finish(y.float() * scale_of(scale) * pertoken_scale.unsqueeze(-1), bias, dtype)
    if dtype == torch.float16 or x1.is_floating_point():
        scale = packed(scale)
    return _finish(y.float() * scale_of(scale), bias, dtype)


@npu_quant_matmul.check
def _(
    x1,
    x2,
    scale,
    offset,
    pertoken_scale,
    bias,
    output_dtype,
    x1_dtype,
    x2_dtype,
    pertoken_scale_dtype,
    scale_dtype,
    group_sizes,
    y_scale,
):
    must.unset("y_scale", y_scale)
    dtype = dtype_of(output_dtype, torch.int8)
    if _mx.asked(scale_dtype, scale) or _mx.asked(pertoken_scale_dtype, pertoken_scale):
        _mx.check_chip("pertoken_scale_dtype" if scale_dtype is None else "scale_dtype")
        _mx.check_matrix("x1", "x1_dtype", x1, x1_dtype)
        _mx.check_matrix("x2", "x2_dtype", x2, x2_dtype)
        rules.microscaled(_mx.shape(x1, x1_dtype), _mx.shape(x2, x2_dtype), offset, bias, dtype)
        rules.microscales(
            _mx.shape(x1, x1_dtype), _mx.shape(x2, x2_dtype), scale, scale_dtype,
            pertoken_scale, pertoken_scale_dtype, group_sizes,
        )  # fmt: skip
        return
    x1 = stand_in("x1", "x1_dtype", x1, x1_dtype)
    x2 = stand_in("x2", "x2_dtype", x2, x2_dtype)
    must.unset("pertoken_scale_dtype", pertoken_scale_dtype)
    must.unset("scale_dtype", scale_dtype)
    rules.matrices(x1, x2)
    rules.inner_sizes(x1, x2, scale, pertoken_scale)
    rules.output(x1, dtype)
    rules.group_sizes(group_sizes)
    if rules.by_groups(x1, x2, scale):
        rules.group_scales(x1, x2, scale, offset, pertoken_scale, dtype, group_sizes)
    else:
        rules.scales(x1, x2, scale, offset, pertoken_scale, dtype)
        expected = "None or of zeros and ones where 'scale' has 1 dimension"
        must.hold(max(group_sizes or [0]) <= 1, "group_sizes", expected, group_sizes)
    rules.bias(x1, x2, scale, bias, pertoken_scale, dtype)


npu_quant_matmul.samples = [
    Sample(
        lambda make: (
            make(4, 32, dtype=torch.int8, low=-9, high=9),
            make(32, 16, dtype=torch.int8, low=-9, high=9),
            make(16),
        ),
        lambda make: {"offset": make(16, low=-9, high=9)},
    ),
    Sample(
        lambda make: (
            make(2, 4, 32, dtype=torch.int8, low=-9, high=9),
            make(2, 32, 16, dtype=torch.int8, low=-9, high=9),
            make(16, dtype=torch.bfloat16),
        ),
        lambda make: {
            "pertoken_scale": make(4),
            "bias": make(16, dtype=torch.bfloat16),
            "output_dtype": torch.bfloat16,
        },
    ),
    Sample(
        lambda make: (
            make(3, 4, dtype=torch.int32, low=-(2**31), high=2**31),
            make(32, 2, dtype=torch.int32, low=-(2**31), high=2**31),
            make(1),
        ),
        lambda make: {"pertoken_scale": make(3), "output_dtype": torch.float16},
    ),
    Sample(
        lambda make: (
            make(3, 128, dtype=torch.int8, low=-9, high=9),
            make(128, 8, dtype=torch.int8, low=-9, high=9),
            make(1),
        ),
        lambda make: {"bias": make(8, dtype=torch.int32, high=9), "output_dtype": torch.int32},
    ),
]
