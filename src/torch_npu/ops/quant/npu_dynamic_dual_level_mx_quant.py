"""npu_dynamic_dual_level_mx_quant: float4_e2m1 with a float scale for 512 elements and a power of two for 32."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _mx

#: elements that share a scale of the first level
_WIDE = 512

_TINY = torch.finfo(torch.float32).tiny


@npu_op(
    "npu_dynamic_dual_level_mx_quant(Tensor input, *, Tensor? smooth_scale=None, "
    'str round_mode="rint") -> (Tensor, Tensor, Tensor)',
    chips=("A5",),
)
def npu_dynamic_dual_level_mx_quant(input, smooth_scale, round_mode):
    r"""Quantizes the last axis to 4 bits in two steps: a float32 scale for 512 elements, a power of two for 32.

    $$ s_0 = \frac{\max_{512} |x \cdot smooth|}{6}, \quad t = \frac{x \cdot smooth}{s_0}, \quad
       s_1 = 2^{\lfloor \log_2 \max_{32} |t| \rfloor - 2}, \quad y = \mathrm{round}(t / s_1) $$

    The product with `smooth_scale` and $t$ are rounded to the dtype of `input`. Infinities and NaN do not count for
    $s_0$; their blocks of 32 have the scale NaN (byte 255) and quantize to 0.

    Args:
        input: x, at least 1 dimension, the last one even; float16 or bfloat16.
        smooth_scale: factors for the last dimension, in the dtype of `input`.
        round_mode: "rint" (halves to even), "round" (halves away from zero) or "floor".

    Returns:
        y as uint8 with two float4_e2m1 each (the first in the low bits); $s_0$ in float32, (..., ceil(N / 512)); the
        bytes of $s_1$ as uint8, (..., ceil(N / 64), 2).

    Constraints:
        Ascend950.
    """
    x = input if smooth_scale is None else input * smooth_scale
    size = x.shape[-1]
    whole = -(-size // _WIDE)
    padded = torch.nn.functional.pad(x, (0, whole * _WIDE - size))
    wide = padded.float().unflatten(-1, (whole, _WIDE))
    sixth = torch.tensor(1 / 6, dtype=torch.float32, device=x.device)  # the card multiplies by it
    top = torch.where(wide.isfinite(), wide.abs(), 0.0).amax(-1) * sixth
    level0 = torch.where(top < _TINY, 0.0, top)
    normed = torch.where(wide == 0, wide, wide / level0.unsqueeze(-1)).to(x.dtype)
    values = normed.flatten(-2)[..., :size]
    blocks = _mx.blocks_of(values)
    byte, factor = _mx.scales(blocks.abs().amax(-1), _mx.FLOAT4[0], keep_tiny=True)
    y = _mx.encode(
        (blocks * factor.unsqueeze(-1)).flatten(-2)[..., :size], _mx.FLOAT4[0], round_mode
    )
    return y, level0, byte.to(torch.uint8).unflatten(-1, (-1, _mx.PAIR)).contiguous()


@npu_dynamic_dual_level_mx_quant.check
def _(input, smooth_scale, round_mode):
    must.dtype("input", input, torch.float16, torch.bfloat16)
    must.ndim("input", input, 1, 7)
    _mx.check_even("input", input, _mx.FLOAT4[0])
    must.same_dtype("smooth_scale", smooth_scale, "input", input)
    must.shape("smooth_scale", smooth_scale, (input.shape[-1],))
    must.choice("round_mode", round_mode, ("rint", "floor", "round"))


npu_dynamic_dual_level_mx_quant.samples = [
    Sample(lambda make: (make(2, 600, dtype=torch.bfloat16),)),
    Sample(
        lambda make: (make(3, 64, dtype=torch.float16),),
        lambda make: {"smooth_scale": make(64, dtype=torch.float16), "round_mode": "floor"},
    ),
]
