"""npu_dynamic_block_mx_quant: microscaling formats with one scale for a block of 32 by 32."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats, _mx


@npu_op(
    'npu_dynamic_block_mx_quant(Tensor input, *, str round_mode="rint", int dst_type=296, '
    "int scale_alg=0, float dst_type_max=0.0) -> (Tensor, Tensor, Tensor)",
    chips=("A5",),
)
def npu_dynamic_block_mx_quant(input, round_mode, dst_type, scale_alg, dst_type_max):
    r"""Quantizes blocks of 32 by 32 of the last two axes with a power of two as the scale of each block.

    The scale is that of `npu_dynamic_mx_quant`, taken over the whole block, and is written twice: for products along
    the last axis, and along the last but one.

    Args:
        input: 2 or 3 dimensions, (B, M, N) or (M, N); float16 or bfloat16.
        round_mode: "rint"; for 4-bit floats also "round" and "floor".
        dst_type: float4_e2m1fn_x2 (the default), float4_e1m2, float8_e4m3fn or float8_e5m2.
        scale_alg: 0; for float4_e2m1fn_x2 also 2.
        dst_type_max: for `scale_alg` 2: 0, 6 or 7.

    Returns:
        y in the shape of `input` (4-bit floats two to a uint8), the scales of each row's blocks, (B, M, ceil(N / 64),
        2), and those of each column's blocks, (B, ceil(M / 64), N, 2), both uint8.

    Constraints:
        Ascend950.
    """
    name = _formats.chosen(dst_type)
    height, width = input.shape[-2:]
    rows = _mx.pairs(height) * _mx.PAIR
    padded = torch.nn.functional.pad(input, (0, 0, 0, rows * _mx.BLOCK - height))
    blocks = _mx.blocks_of(padded).unflatten(-3, (rows, _mx.BLOCK))
    top = blocks.abs().amax((-3, -1))  # (..., rows of blocks, columns of blocks)
    byte, factor = _mx.scales(top, name, scale_alg, dst_type_max, coarse=input.dtype)
    values = (blocks * factor.unsqueeze(-2).unsqueeze(-1)).flatten(-2).flatten(-3, -2)
    y = _mx.encode(values[..., :height, :width], name, round_mode)
    byte = byte.to(torch.uint8)
    by_row = byte.repeat_interleave(_mx.BLOCK, -2)[..., :height, :].unflatten(-1, (-1, _mx.PAIR))
    by_column = byte.repeat_interleave(_mx.BLOCK, -1)[..., :width].unflatten(-2, (-1, _mx.PAIR))
    return y, by_row.contiguous(), by_column.mT.contiguous()


@npu_dynamic_block_mx_quant.check
def _(input, round_mode, dst_type, scale_alg, dst_type_max):
    algorithms = {name: (0,) for name in (*_mx.FLOAT8, _mx.FLOAT4[1])} | {_mx.FLOAT4[0]: (0, 2)}
    name = _mx.check(round_mode, dst_type, scale_alg, algorithms)
    must.dtype("input", input, torch.float16, torch.bfloat16)
    must.ndim("input", input, 2, 3)
    _mx.check_even("input", input, name)
    if scale_alg == 2:
        must.choice("dst_type_max", dst_type_max, (0.0, 6.0, 7.0))
    else:
        must.hold(dst_type_max == 0, "dst_type_max", "0 unless 'scale_alg' is 2", dst_type_max)


npu_dynamic_block_mx_quant.samples = [
    Sample(lambda make: (make(2, 40, 70, dtype=torch.bfloat16),)),
    Sample(lambda make: (make(64, 31, dtype=torch.float16),), {"dst_type": torch.float8_e4m3fn}),
    Sample(
        lambda make: (make(33, 34, dtype=torch.float16),),
        {"round_mode": "round", "scale_alg": 2, "dst_type_max": 7.0},
    ),
]
