"""npu_dynamic_quant_asymmetric: quantization with scales and offsets from the data."""

from __future__ import annotations

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _dynamic, _formats


@npu_op(
    "npu_dynamic_quant_asymmetric(Tensor input, *, Tensor? smooth_scales=None, "
    'Tensor? group_index=None, int? dst_type=None, str quant_mode="pertoken", '
    "float dst_type_max=0.0) -> (Tensor, Tensor, Tensor)"
)
def npu_dynamic_quant_asymmetric(
    input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max
):
    r"""Quantizes each row with a scale and an offset of its own, over the whole range of the type.

    $$ scale = \frac{\max_{row}(x) - \min_{row}(x)}{DST\_MAX - DST\_MIN}, \qquad
       offset = DST\_MAX - \frac{\max_{row}(x)}{scale}, \qquad
       y = \mathrm{round}\left(\frac{x}{scale} + offset\right) $$

    where x is the input times its smoothing scales. Halves round to even. The scale is at least 1e-12; on Ascend950 a
    row of equal values has scale 0, so its offset is infinite (NaN if they are 0) and it quantizes to 0. On Atlas
    inference and training series $offset = -(\max + \min) / (2 \cdot scale)$, all in float16, and halves round away from 0.

    Args:
        input: x, 2 to 8 dimensions; float16 or bfloat16.
        smooth_scales: factors for the last dimension, or one such row for each group; the dtype of `input` (in a graph
            float16 and bfloat16 may mix). On Atlas inference and training series it has no effect, as on the card.
        group_index: int32, the end of each group of rows: non-decreasing, the last one is the number of rows; 1 to
            1024 groups, as many as `smooth_scales` has rows.
        dst_type: int8 (the default) or quint4x2; on Ascend950 also float8_e4m3fn, float8_e5m2 and hifloat8.
        quant_mode: "pertoken"; Ascend950 also has "perchannel" and "pertensor", as in `npu_dynamic_quant`.
        dst_type_max: Ascend950: the largest value to quantize to; 0 is the type's. The smallest is its negative.

    Returns:
        y (quint4x2: int32 with an eighth of the last dimension), the scales and the offsets, both float32 in the
        shape of `input` without the last dimension.

    Constraints:
        quint4x2 needs a last dimension divisible by 8.
    """
    name = _formats.chosen(dst_type)
    top = dst_type_max or _formats.largest(name)
    bottom = -dst_type_max or _formats.smallest(name)
    x = _dynamic.smoothed(input, smooth_scales, group_index, quant_mode)
    over = _dynamic.dims(x, quant_mode)
    high, low = (_dynamic.extreme(f, x, over) for f in (torch.amax, torch.amin))
    order = _dynamic.order()
    if order == _dynamic.STEPS:
        y, scale, offset = _dynamic.asymmetric_steps(x, high, low, name)
        return y, _dynamic.squeezed(scale, quant_mode), _dynamic.squeezed(offset, quant_mode)
    scale = _dynamic.asymmetric_scale(high, low, top, bottom, order)
    offset = top - high / scale
    scaled = x * (1 / scale) if order == _dynamic.PRODUCT else x / scale
    return (
        _formats.encode(scaled + offset, name),
        _dynamic.squeezed(scale, quant_mode),
        _dynamic.squeezed(offset, quant_mode),
    )


@npu_dynamic_quant_asymmetric.check
def _(input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max):
    _dynamic.check(input, smooth_scales, group_index, dst_type, quant_mode, dst_type_max)


@npu_dynamic_quant_asymmetric.native
def _(input, dst_type, **options):
    found = _dynamic.native(input, _formats.chosen(dst_type), True, **options)
    if found is None:
        return NotImplemented
    return found


npu_dynamic_quant_asymmetric.samples = [
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
