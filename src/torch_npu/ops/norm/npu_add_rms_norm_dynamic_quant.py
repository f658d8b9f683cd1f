"""npu_add_rms_norm_dynamic_quant: a sum, its RMS norm, and one or two quantizations with scales from the data."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _dynamic, _formats
from torch_npu.ops.norm import _quantized


def _wanted(smooth1, smooth2, mask):
    """Which of the two quantizations are made."""
    if mask is not None:
        return tuple(mask)
    return True, smooth1 is not None and smooth2 is not None


@npu_op(
    "npu_add_rms_norm_dynamic_quant(Tensor x1, Tensor x2, Tensor gamma, *, "
    "Tensor? smooth_scale1=None, Tensor? smooth_scale2=None, Tensor? beta=None, "
    "float epsilon=1e-6, bool[2]? output_mask=None, int? y_dtype=None)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def npu_add_rms_norm_dynamic_quant(
    x1, x2, gamma, smooth_scale1, smooth_scale2, beta, epsilon, output_mask, y_dtype
):
    r"""Adds, normalizes rows by their root mean square, and quantizes each row with a scale of its own.

    $$ x = x_1 + x_2, \qquad y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot \gamma + \beta, \qquad
       scale_i = \frac{\max_{row} |y \cdot smooth_i|}{DTYPE\_MAX}, \qquad
       y_i = \mathrm{round}\left(\frac{y \cdot smooth_i}{scale_i}\right) $$

    Args:
        x1, x2: 2 to 8 dimensions, alike; float16 or bfloat16.
        gamma: (N), the size of the last dimension, in the dtype of `x1`.
        smooth_scale1, smooth_scale2: (N), in the dtype of `x1`; no factor where None.
        beta: (N), in the dtype of `x1`.
        epsilon: added to the mean square.
        output_mask: which of the two are made; None makes the second one if both smoothing scales are given.
        y_dtype: int8 (the default) or quint4x2; on Ascend950 also float8_e4m3fn, float8_e5m2 and hifloat8.

    Returns:
        y1, y2 in the shape of `x1` (quint4x2: int32 with an eighth of the last dimension), x in the dtype of `x1`,
        and the scales of y1 and y2 in float32, `x1.shape[:-1]`. What is not made is a tensor of no dimensions.

    Constraints:
        A smoothing scale needs its output; at least one output is made.
    """
    # the card rounds the sum for its result, and goes on with it unrounded
    x = wide(x1) + wide(x2)
    y, _ = _quantized.normed(x, gamma, beta, epsilon)
    name = _formats.chosen(y_dtype)
    found = []
    wanted = _wanted(smooth_scale1, smooth_scale2, output_mask)
    for made, smooth in zip(wanted, (smooth_scale1, smooth_scale2), strict=True):
        if made:
            scaled = y if smooth is None else y * wide(smooth)
            order = _dynamic.PLAIN if _chip.on_950() else _dynamic.INVERSE
            found.append(_dynamic.symmetric(scaled, name, order=order))
        else:
            stored = _formats.encode(y.new_zeros(8), name).dtype
            found.append((y.new_zeros((), dtype=stored), y.new_zeros(())))
    (y1, scale1), (y2, scale2) = found
    return y1, y2, x.to(x1.dtype), scale1, scale2


@npu_add_rms_norm_dynamic_quant.check
def _(x1, x2, gamma, smooth_scale1, smooth_scale2, beta, output_mask, y_dtype):
    must.dtype("x1", x1, torch.float16, torch.bfloat16)
    must.ndim("x1", x1, 2, 8)
    must.same_dtype("x2", x2, "x1", x1)
    must.shape("x2", x2, tuple(x1.shape))
    rows = (gamma, smooth_scale1, smooth_scale2, beta)
    for name, row in zip(("gamma", "smooth_scale1", "smooth_scale2", "beta"), rows, strict=True):
        must.same_dtype(name, row, "x1", x1)
        must.shape(name, row, (x1.shape[-1],))
    if output_mask is not None:
        must.hold(any(output_mask), "output_mask", "True somewhere", output_mask, ErrCode.PARAM)
        for place, smooth in enumerate((smooth_scale1, smooth_scale2)):
            fits = smooth is None or output_mask[place]
            given = f"smooth_scale{place + 1}"
            must.hold(fits, "output_mask", f"True at {place} with '{given}'", output_mask)
    _formats.check("y_dtype", y_dtype, *_chip.formats("int8", "int4"))
    _formats.check_packing("x1", x1, _formats.chosen(y_dtype))


npu_add_rms_norm_dynamic_quant.samples = [
    Sample(
        lambda make: (
            *(make(2, 3, 16, dtype=torch.float16, seed=s) for s in (1, 2)),
            make(16, dtype=torch.float16),
        )
    ),
    Sample(
        lambda make: (
            *(make(4, 16, dtype=torch.bfloat16, seed=s) for s in (1, 2)),
            make(16, dtype=torch.bfloat16),
        ),
        lambda make: {
            "smooth_scale1": make(16, dtype=torch.bfloat16, seed=3),
            "smooth_scale2": make(16, dtype=torch.bfloat16, seed=4),
            "beta": make(16, dtype=torch.bfloat16, seed=5),
            "y_dtype": torch.quint4x2,
            "epsilon": 1e-5,
        },
    ),
    Sample(
        lambda make: (
            *(make(4, 16, dtype=torch.float16, seed=s) for s in (1, 2)),
            make(16, dtype=torch.float16),
        ),
        {"output_mask": [False, True]},
    ),
]
