"""npu_grouped_dynamic_block_quant: dynamic quantization with one scale a block, blocks within groups of rows."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops._shared import _quant_groups as _groups
from torch_npu.ops.quant.npu_dynamic_block_quant import finite_at_most

_FORMATS = ("float8_e5m2", "float8_e4m3fn", "hifloat8")


@npu_op(
    "npu_grouped_dynamic_block_quant(Tensor x, Tensor group_list, *, float min_scale=0.0, "
    'str round_mode="rint", int dst_type=291, int row_block_size=1, int col_block_size=128, '
    "int group_list_type=0, float dst_type_max=0.0) -> (Tensor, Tensor)",
    chips=("A5",),
)
def npu_grouped_dynamic_block_quant(
    x, group_list, min_scale, dst_type, row_block_size, col_block_size, dst_type_max
):
    r"""Cuts the rows of each group and the columns into blocks and quantizes each block with a scale of its own.

    $$ scale = \min\left(\frac{\max_{block} |x|}{DTYPE\_MAX}, \frac{1}{min\_scale}\right), \qquad
       y = \mathrm{round}\left(\frac{x}{scale}\right) $$

    A block of zeros quantizes to 0.

    Args:
        x: (M, N) or (B, M, N); float16 or bfloat16.
        group_list: int32, the end of each group of rows: non-decreasing, the last one is M.
        min_scale: 0 or positive; the reciprocal of the largest scale.
        round_mode: "rint" for 8-bit floats, "round" for hifloat8.
        dst_type: float8_e5m2 (the default), float8_e4m3fn or hifloat8.
        row_block_size: 1, 128, 256 or 512.
        col_block_size: 64, 128, 192 or 256.
        group_list_type: 0, ends.
        dst_type_max: for hifloat8 what to divide the maximum by, up to 32768; 0 is the format's largest value.

    Returns:
        y in the shape of `x`, and the scales in float32, (B, M // row_block_size + groups, ceil(N / col_block_size)):
        those of group g begin at index start // row_block_size + g; others are 0 (on the card whatever the memory
        held).

    Constraints:
        Ascend950. "hybrid" rounding of hifloat8 is not here.
    """
    name = _formats.chosen(dst_type)
    rows, groups = x.shape[-2], group_list.shape[0]
    ends = group_list.long()
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    row = torch.arange(rows, device=x.device)
    group = _groups.group_of_rows(ends, rows)
    first = starts // row_block_size + torch.arange(groups, device=x.device)
    slot = first[group] + (row - starts[group]) // row_block_size  # of each row
    width = -(-x.shape[-1] // col_block_size)
    padded = torch.nn.functional.pad(x.float(), (0, width * col_block_size - x.shape[-1]))
    blocks = padded.unflatten(-1, (width, col_block_size))
    top = blocks.abs().amax(-1)
    count = rows // row_block_size + groups
    index = slot.view(-1, 1).expand(rows, width).expand(top.shape)
    most = top.new_zeros(*top.shape[:-2], count, width).scatter_reduce(-2, index, top, "amax")
    limit = dst_type_max if name == "hifloat8" else 0.0  # read for hifloat8 alone
    scale = finite_at_most(most / (limit or _formats.largest(name)), min_scale)
    divisor = torch.where(scale == 0, 1.0, scale).gather(-2, index)
    values = (blocks / divisor.unsqueeze(-1)).flatten(-2)[..., : x.shape[-1]]
    return _formats.encode(values, name), scale


@npu_grouped_dynamic_block_quant.check
def _(
    x,
    group_list,
    min_scale,
    round_mode,
    dst_type,
    row_block_size,
    col_block_size,
    group_list_type,
    dst_type_max,
):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2, 3)
    must.dtype("group_list", group_list, torch.int32)
    must.ndim("group_list", group_list, 1)
    must.hold(group_list.shape[0] > 0, "group_list", "of at least one group", group_list.shape[0])
    must.hold(min_scale >= 0, "min_scale", "0 or positive", min_scale)
    _formats.check("dst_type", dst_type, *_FORMATS)
    high = _formats.chosen(dst_type) == "hifloat8"
    if high and round_mode == "hybrid":
        raise NotImplementedError("npu_grouped_dynamic_block_quant: round_mode 'hybrid'")
    must.choice("round_mode", round_mode, ("round",) if high else ("rint",))
    must.choice("row_block_size", row_block_size, (1, 128, 256, 512))
    must.choice("col_block_size", col_block_size, (64, 128, 192, 256))
    must.choice("group_list_type", group_list_type, (0,))
    fits = not high or 0 <= dst_type_max <= 32768
    must.hold(fits, "dst_type_max", "from 0 to 32768", dst_type_max)
    _groups.check_ends("group_list", group_list, x.shape[-2])


npu_grouped_dynamic_block_quant.samples = [
    Sample(
        lambda make: (
            make(5, 200, dtype=torch.bfloat16),
            make(2, dtype=torch.int32, low=5, high=6),
        )
    ),
    Sample(
        lambda make: (
            make(2, 130, 70, dtype=torch.float16),
            make(1, dtype=torch.int32, low=130, high=131),
        ),
        {
            "dst_type": 290,
            "round_mode": "round",
            "row_block_size": 128,
            "col_block_size": 64,
            "min_scale": 0.5,
            "dst_type_max": 15.0,
        },
    ),
]
