"""npu_dynamic_quant: symmetric quantization with scales from the data."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _dynamic, _formats


@npu_op(
    "npu_dynamic_quant(Tensor input, *, Tensor? smooth_scales=None, Tensor? group_index=None, "
    'int? dst_type=None, str quant_mode="pertoken", float dst_type_max=0.0) -> (Tensor, Tensor)'
)
def npu_dynamic_quant(input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max):
    r"""Quantizes each row with a scale of its own, symmetrically around 0.

    $$ scale = \frac{\max_{row} |x \cdot smooth|}{DTYPE\_MAX}, \qquad
       y = \mathrm{round}\left(\frac{x \cdot smooth}{scale}\right) $$

    Halves round to even (on Atlas inference and training series away from 0, after a product in float16). A row of
    zeros has scale 0 and quantizes to 0; a row with NaN has scale NaN and quantizes to 0, as does one with an infinity
    (its scale is infinite).

    Args:
        input: x, 2 to 8 dimensions; float16 or bfloat16.
        smooth_scales: factors for the last dimension, or one such row for each group; the dtype of `input` (in a graph
            float16 and bfloat16 may mix). On Atlas inference and training series it has no effect, as on the card.
        group_index: int32, the end of each group of rows: non-decreasing, the last one is the number of rows; 1 to
            1024 groups, as many as `smooth_scales` has rows.
        dst_type: int8 (the default) or quint4x2; on Ascend950 also float8_e4m3fn, float8_e5m2 and hifloat8.
        quant_mode: "pertoken". Ascend950 also has "perchannel" (a scale for each index of the last dimension, taken
            over the last but one, where `smooth_scales` then lies) and "pertensor" (one scale).
        dst_type_max: Ascend950: what to divide the maximum by instead of the type's largest value; 0 is that value.

    Returns:
        y in the shape of `input` (quint4x2: int32 with an eighth of the last dimension, the first value in the
        lowest bits), and the scales in float32: the shape of `input` without the last dimension (perchannel: without
        the last but one; pertensor: one element).

    Constraints:
        quint4x2 needs a last dimension divisible by 8.
    """
    x = _dynamic.smoothed(input, smooth_scales, group_index, quant_mode)
    order = _dynamic.symmetric_order(input.shape[-1], smooth_scales, group_index)
    return _dynamic.symmetric(x, _formats.chosen(dst_type), dst_type_max, quant_mode, order=order)


@npu_dynamic_quant.check
def _(input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max):
    _dynamic.check(input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max)


@npu_dynamic_quant.native
def _(input, dst_type, **options):
    found = _dynamic.native(input, _formats.chosen(dst_type), False, **options)
    if found is None:
        return NotImplemented
    return found[:2]


npu_dynamic_quant.samples = [
    Sample(lambda make: (make(4, 16, dtype=torch.float16),)),
    Sample(
        lambda make: (make(2, 3, 16, dtype=torch.bfloat16),),
        lambda make: {
            "smooth_scales": make(16, dtype=torch.bfloat16),
            "dst_type": torch.quint4x2,
        },
    ),
    Sample(
        lambda make: (make(6, 8, dtype=torch.float16),),
        lambda make: {
            "smooth_scales": make(1, 8, dtype=torch.float16),
            "group_index": make(1, dtype=torch.int32, low=6, high=7),
        },
    ),
]
