"""npu_dual_level_quant_matmul: a product of 4-bit floats with two levels of scales."""

from __future__ import annotations

import torch

from torch_npu import _dtypes
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared import _mx_matmul as _mx

#: depths that share a scale of the first level
_WIDE = 512

_OUTPUTS = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def _values(matrix, level1):
    """The rows of a packed matrix times the powers of two of their blocks of 32."""
    found = _formats.decode(matrix.view(torch.uint8), _mx.FLOAT4[0])
    blocks = _mx.powers(level1).flatten(-2).repeat_interleave(_mx.BLOCK, -1)
    return found * blocks[..., : found.shape[-1]]


@npu_op(
    "npu_dual_level_quant_matmul(Tensor x1, Tensor x2, Tensor x1_level0_scale, "
    "Tensor x2_level0_scale, Tensor x1_level1_scale, Tensor x2_level1_scale, *, Tensor? bias=None, "
    "int output_dtype=15) -> Tensor",
    chips=("A5",),
    product=True,
)
def npu_dual_level_quant_matmul(
    x1,
    x2,
    x1_level0_scale,
    x2_level0_scale,
    x1_level1_scale,
    x2_level1_scale,
    bias,
    output_dtype,
):
    r"""The product of two matrices that `npu_dynamic_dual_level_mx_quant` made.

    $$ y = \sum_i s^0_{1,i}\, s^0_{2,i} \sum_{k \in block_i} (s^1_1 x_1)_{mk} (s^1_2 x_2)_{nk} + bias $$

    with a float scale $s^0$ for 512 depths and a power of two $s^1$ for 32.

    Args:
        x1: (M, K / 2), bytes with two float4_e2m1 each.
        x2: (N, K / 2), likewise.
        x1_level0_scale: (M, ceil(K / 512)), float32.
        x2_level0_scale: (ceil(K / 512), N), float32.
        x1_level1_scale, x2_level1_scale: (M, ceil(K / 64), 2) and (N, ceil(K / 64), 2), bytes of powers of two.
        bias: (N), float32.
        output_dtype: bfloat16 (the default) or float16.

    Returns:
        y of shape (M, N).

    Constraints:
        Ascend950.

    Differs from upstream:
        Upstream takes `x2` in the format NZ alone; here ND is the same.
    """
    left, right = _values(x1, x1_level1_scale), _values(x2, x2_level1_scale)
    y = left.new_zeros(x1.shape[0], x2.shape[0])
    for block in range(x1_level0_scale.shape[1]):
        part = slice(block * _WIDE, (block + 1) * _WIDE)
        product = torch.matmul(left[:, part], right[:, part].t())
        y = y + product * x1_level0_scale[:, block : block + 1] * x2_level0_scale[block]
    y = y if bias is None else y + bias
    return y.to(_OUTPUTS[_formats.chosen(output_dtype)])


@npu_dual_level_quant_matmul.check
def _(
    x1,
    x2,
    x1_level0_scale,
    x2_level0_scale,
    x1_level1_scale,
    x2_level1_scale,
    bias,
    output_dtype,
):
    bytes_ = (torch.uint8, torch.int8, *_dtypes.FLOAT4)
    for name, matrix in (("x1", x1), ("x2", x2)):
        must.dtype(name, matrix, *bytes_)
        must.ndim(name, matrix, 2)
    must.hold(
        x1.shape[1] == x2.shape[1],
        "x2",
        f"of {x1.shape[1]} columns, as 'x1'",
        x2.shape[1],
        ErrCode.PARAM,
    )
    sizes = (x1.shape[0], x2.shape[0], x1.shape[1])
    must.hold(all(sizes), "x1", "and 'x2' not empty", tuple(x1.shape), ErrCode.PARAM)
    depth = x1.shape[1] * 2
    wide, pairs = -(-depth // _WIDE), _mx.pairs(depth)
    for name, scale, shape in (
        ("x1_level0_scale", x1_level0_scale, (x1.shape[0], wide)),
        ("x2_level0_scale", x2_level0_scale, (wide, x2.shape[0])),
    ):
        must.dtype(name, scale, torch.float32)
        must.shape(name, scale, shape)
    for name, scale, rows in (
        ("x1_level1_scale", x1_level1_scale, x1.shape[0]),
        ("x2_level1_scale", x2_level1_scale, x2.shape[0]),
    ):
        must.dtype(name, scale, torch.uint8, torch.int8, torch.float8_e8m0fnu)
        must.shape(name, scale, (rows, pairs, 2))
    must.dtype("bias", bias, torch.float32)
    must.shape("bias", bias, (x2.shape[0],))
    _formats.check("output_dtype", output_dtype, *_OUTPUTS)


def _bytes(make, *shape):
    return make(*shape, dtype=torch.uint8, low=0, high=256)


def _powers(make, *shape):
    return make(*shape, dtype=torch.uint8, low=124, high=130)


npu_dual_level_quant_matmul.samples = [
    Sample(
        lambda make: (
            _bytes(make, 3, 300),
            _bytes(make, 5, 300),
            make(3, 2),
            make(2, 5),
            _powers(make, 3, 10, 2),
            _powers(make, 5, 10, 2),
        ),
        lambda make: {"bias": make(5)},
    ),
    Sample(
        lambda make: (
            _bytes(make, 3, 32),
            _bytes(make, 4, 32),
            make(3, 1),
            make(1, 4),
            _powers(make, 3, 1, 2),
            _powers(make, 4, 1, 2),
        ),
        {"output_dtype": torch.float16},
    ),
]
