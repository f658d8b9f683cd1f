"""npu_dynamic_block_quant: dynamic quantisation with one scale a block."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.quant import _chip, _formats


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


@npu_op(
    'npu_dynamic_block_quant(Tensor x, *, float min_scale=0.0, str round_mode="rint", '
    "int dst_type=1, int row_block_size=1, int col_block_size=128, float dst_type_max=0.0) "
    "-> (Tensor y, Tensor scale)"
)
def npu_dynamic_block_quant(x, min_scale, dst_type, row_block_size, col_block_size, dst_type_max):
    r"""Cuts the last two dimensions into blocks and quantises each with a scale of its own.

    $$ scale = \max\left(\frac{\max_{block} |x|}{DTYPE\_MAX}, min\_scale\right), \qquad
       y = \mathrm{round}\left(\frac{x}{scale}\right) $$

    A block of zeros quantises to 0. The last block of a dimension may be cut short.

    Args:
        x: 2 or 3 dimensions; float16 or bfloat16.
        min_scale: the least scale, 0 or positive.
        round_mode: "rint".
        dst_type: int8; on Ascend950 also float8_e4m3fn, float8_e5m2 and hifloat8 (whose rounding is "round").
        row_block_size: 1; on Ascend950 any positive size.
        col_block_size: 128; on Ascend950 any positive size.
        dst_type_max: Ascend950: what to divide the maximum by instead of the type's largest value; 0 is that value.

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
    top = dst_type_max or _formats.largest(name)
    scale = (blocks.abs().amax((-3, -1), keepdim=True) / top).clamp(min=min_scale)
    values = (blocks / torch.where(scale == 0, 1.0, scale)).reshape(padded.shape)
    y = _formats.encode(values[..., :height, :width], name)
    return y, scale.squeeze((-3, -1)).contiguous()


@npu_dynamic_block_quant.check
def _(x, min_scale, round_mode, dst_type, row_block_size, col_block_size, dst_type_max):
    new = _chip.on_950()
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2, 3)
    must.hold(min_scale >= 0, "min_scale", "0 or positive", min_scale)
    _formats.check("dst_type", dst_type, *_chip.formats("int8"))
    rounding = "round" if _formats.chosen(dst_type) == "hifloat8" else "rint"
    must.choice("round_mode", round_mode, (rounding,))
    for name, size, only in (
        ("row_block_size", row_block_size, 1),
        ("col_block_size", col_block_size, 128),
    ):
        if new:
            must.hold(size > 0, name, "positive", size, ErrCode.VALUE)
        else:
            must.choice(name, size, (only,))
    if not new:
        must.unset("dst_type_max", dst_type_max, 0.0)
    must.hold(dst_type_max >= 0, "dst_type_max", "0 or positive", dst_type_max)


npu_dynamic_block_quant.samples = [
    Sample(lambda make: (make(3, 200, dtype=torch.float16),)),
    Sample(lambda make: (make(2, 3, 128, dtype=torch.bfloat16),), {"min_scale": 0.01}),
]
