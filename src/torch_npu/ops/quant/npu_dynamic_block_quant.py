"""npu_dynamic_block_quant: dynamic quantization with one scale a block."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _dynamic, _formats


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _at_most(scale, min_scale):
    return scale.clamp(max=1.0 / min_scale) if min_scale > 0 else scale


def finite_at_most(scale, min_scale):
    """`_at_most` as the kernels of Ascend950 have it: a block with an infinity keeps its infinite scale."""
    return torch.where(scale.isinf(), scale, _at_most(scale, min_scale))


@npu_op(
    'npu_dynamic_block_quant(Tensor x, *, float min_scale=0.0, str round_mode="rint", '
    "int dst_type=1, int row_block_size=1, int col_block_size=128, float dst_type_max=0.0) "
    "-> (Tensor y, Tensor scale)"
)
def npu_dynamic_block_quant(x, min_scale, dst_type, row_block_size, col_block_size, dst_type_max):
    r"""Cuts the last two dimensions into blocks and quantizes each with a scale of its own.

    $$ scale = \min\left(\frac{\max_{block} |x|}{DTYPE\_MAX}, \frac{1}{min\_scale}\right), \qquad
       y = \mathrm{round}\left(\frac{x}{scale}\right) $$

    A block of zeros quantizes to 0. The last block of a dimension may be cut short.

    Args:
        x: 2 or 3 dimensions; float16, bfloat16, on Ascend950 also float32.
        min_scale: 0 or positive; the reciprocal of the largest scale, as CANN's kernels have it.
        round_mode: "rint".
        dst_type: int8; on Ascend950 also float8_e4m3fn, float8_e5m2 and hifloat8 (whose rounding is "round").
        row_block_size: 1; on Ascend950 also 64, 128, 256 or 512.
        col_block_size: 128; on Ascend950 also 64, 192 or 256.
        dst_type_max: for hifloat8 15, 56, 224 or 32768: what to divide the maximum by instead of the type's largest
            value; 0 is that value.

    Returns:
        y in the shape of `x`, and the scales in float32, one a block.
    """
    name = _formats.chosen(dst_type)
    height, width = x.shape[-2:]
    rows, columns = _blocks(height, row_block_size), _blocks(width, col_block_size)
    pad = (0, columns * col_block_size - width, 0, rows * row_block_size - height)
    padded = torch.nn.functional.pad(wide(x), pad)
    blocks = padded.unflatten(-1, (columns, col_block_size))
    blocks = blocks.unflatten(-3, (rows, row_block_size))
    high = blocks.abs().amax((-3, -1), keepdim=True)
    top = dst_type_max or _formats.largest(name)
    if _chip.on_950():
        scale = finite_at_most(high / top, min_scale)
        values = blocks / torch.where(scale == 0, 1.0, scale)
    else:  # dynamic_block_quant.h multiplies by reciprocals
        scale = _at_most(high * _dynamic.reciprocal(top, high.dtype), min_scale)
        factor = (1 / high * top).clamp(min=min_scale)
        values = blocks * torch.where(high == 0, 0.0, factor)
    values = values.reshape(padded.shape)
    y = _formats.encode(values[..., :height, :width], name)
    return y, scale.squeeze((-3, -1)).contiguous()


@npu_dynamic_block_quant.check
def _(x, min_scale, round_mode, dst_type, row_block_size, col_block_size, dst_type_max):
    new = _chip.on_950()
    must.dtype("x", x, torch.float16, torch.bfloat16, *((torch.float32,) if new else ()))
    must.ndim("x", x, 2, 3)
    must.hold(min_scale >= 0, "min_scale", "0 or positive", min_scale)
    _formats.check("dst_type", dst_type, *_chip.formats("int8"))
    rounding = "round" if _formats.chosen(dst_type) == "hifloat8" else "rint"
    must.choice("round_mode", round_mode, (rounding,))
    must.choice("row_block_size", row_block_size, (1, 64, 128, 256, 512) if new else (1,))
    must.choice("col_block_size", col_block_size, (64, 128, 192, 256) if new else (128,))
    if new and rounding == "round":
        must.choice("dst_type_max", dst_type_max, (0.0, 15.0, 56.0, 224.0, 32768.0))
    else:
        must.unset("dst_type_max", dst_type_max, 0.0)


npu_dynamic_block_quant.samples = [
    Sample(lambda make: (make(3, 200, dtype=torch.float16),)),
    Sample(lambda make: (make(2, 3, 128, dtype=torch.bfloat16),), {"min_scale": 0.01}),
]
