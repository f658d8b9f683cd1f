"""npu_quant_scatter and npu_quant_scatter_: updates quantized, then written into a cache at an offset for each row."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _formats, _segments

#: the bytes that a cache has on Ascend950; `dst_type` tells what they hold
_BYTES = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


def _quantized(updates, quant_scales, quant_zero_points, dst_type):
    y = wide(updates) / wide(quant_scales).flatten()
    if quant_zero_points is not None:
        y = y + wide(quant_zero_points).flatten()
    # before Ascend950 the type has no effect
    return _formats.encode(y, _formats.chosen(dst_type if _chip.on_950() else None))


def _write(target, indices, quantized, axis):
    """Values go in as bytes, whatever the type of the target: there is no index_put for 8-bit floats."""
    _segments.write(target.view(torch.uint8), indices, quantized.view(torch.uint8), axis)
    return target


_ARGUMENTS = (
    "Tensor indices, Tensor updates, Tensor quant_scales, Tensor? quant_zero_points=None, int axis=-2, "
    "int quant_axis=-1, str reduce='update', int? dst_type=None, str? round_mode='rint'"
)


@npu_op(
    f"npu_quant_scatter_(Tensor(a!) self, {_ARGUMENTS}) -> Tensor(a!)",
    functional=f"npu_quant_scatter(Tensor self, {_ARGUMENTS}) -> Tensor",
)
def npu_quant_scatter_(self, indices, updates, quant_scales, quant_zero_points, axis, dst_type):
    r"""Each row of `updates`, quantized, replaces a segment of `self` along `axis`, in place.

    $$ self[i, \ldots, indices_i + k, \ldots] =
       \mathrm{round}\left(\frac{updates[i, \ldots, k, \ldots]}{quant\_scales} + quant\_zero\_points\right) $$

    Halves round to even, results saturate, NaN becomes 0. With (row, offset) pairs the segment goes to `self[row]`.

    Args:
        self: the data, 3 to 8 dimensions; int8. On Ascend950 also float8_e4m3fn, float8_e5m2, and uint8 for hifloat8.
        indices: int32 or int64, an offset for each row of `updates`, or (rows, 2) with pairs of row and offset.
        updates: float16 or (not on the Atlas inference series) bfloat16, the rank of `self`; as long as `indices` in
            dimension 0, at most as long as `self` in `axis` and dimension 0, equal elsewhere.
        quant_scales: float32 beside float16, bfloat16 beside bfloat16; as many elements as the last dimension.
        quant_zero_points: int32 beside float16, bfloat16 beside bfloat16; as many elements, or None.
        axis: the dimension that offsets count along, neither the first nor the last.
        quant_axis: the last dimension.
        reduce: "update".
        dst_type: on Ascend950 the type of the values, None for int8; float8_e4m3fn, float8_e5m2 or hifloat8.
        round_mode: on Ascend950 "rint"; for hifloat8 "round".

    Returns:
        `self`; it is left as it was when an argument is wrong.

    Constraints:
        The last dimension of `updates` is a multiple of 32 bytes, but on Ascend950. Segments do not overlap.

    Differs from upstream: an index out of range and segments that overlap raise; upstream leaves both to the caller.
    """
    quantized = _quantized(updates, quant_scales, quant_zero_points, dst_type)
    return _write(self, indices, quantized, axis)


@npu_quant_scatter_.check
def _(
    self,
    indices,
    updates,
    quant_scales,
    quant_zero_points,
    axis,
    quant_axis,
    reduce,
    dst_type,
    round_mode,
):
    old, new = _chip.on_310p(), _chip.on_950()
    bf16 = () if old else (torch.bfloat16,)
    must.dtype("self", self, *(_BYTES if new else (torch.int8,)))
    must.ndim("self", self, 3, 8)
    must.dtype("indices", indices, torch.int32, torch.int64)
    must.dtype("updates", updates, torch.float16, *bf16)
    half = updates.dtype == torch.float16
    must.dtype("quant_scales", quant_scales, torch.float32 if half else torch.bfloat16)
    must.dtype("quant_zero_points", quant_zero_points, torch.int32 if half else torch.bfloat16)
    must.choice("reduce", reduce, ("update",))
    if new:
        _formats.check("dst_type", dst_type, "int8", *_chip.FLOATS_OF_950)
        high = _formats.chosen(dst_type) == "hifloat8"
        must.choice("round_mode", round_mode or "rint", ("round",) if high else ("rint",))
    _segments.check(self, indices, updates, axis, last_axis=False)
    _segments.check_disjoint(indices, updates.shape[axis])
    must.choice("quant_axis", quant_axis, (-1, updates.dim() - 1))
    size = updates.shape[-1]
    aligned = new or size * updates.element_size() % 32 == 0
    must.hold(
        aligned, "updates", "a multiple of 32 bytes long in the last dimension", size, ErrCode.PARAM
    )
    for name, factor in (("quant_scales", quant_scales), ("quant_zero_points", quant_zero_points)):
        if factor is not None:
            expected = f"of {size} elements, the size of dimension 'quant_axis' of 'updates'"
            must.hold(factor.numel() == size, name, expected, tuple(factor.shape), ErrCode.PARAM)


npu_quant_scatter_.samples = [
    Sample(
        lambda make: (
            make(2, 6, 32, dtype=torch.int8, low=-9, high=9),
            make(2, dtype=torch.int32, low=0, high=6),
            make(2, 1, 32, dtype=torch.float16),
            make(1, 1, 32, low=0.01, high=0.1),
        )
    ),
    Sample(
        lambda make: (
            make(3, 2, 6, 32, dtype=torch.int8, low=-9, high=9),
            make(1, 2, dtype=torch.int32, low=0, high=3),
            make(1, 2, 3, 32, dtype=torch.bfloat16),
            make(32, dtype=torch.bfloat16, low=0.01, high=0.1),
            make(32, dtype=torch.bfloat16),
        ),
        {"axis": 2, "quant_axis": 3},
    ),
]
