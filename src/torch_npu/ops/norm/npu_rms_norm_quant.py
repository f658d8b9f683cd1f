"""npu_rms_norm_quant and npu_rms_norm_quant_v2: RMS norm, then quantization by given scales."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _formats
from torch_npu.ops.norm import _quantized

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def _check_rows(x, gamma, beta):
    floats = _FLOATS[:1] if _chip.on_310p() else _FLOATS[:2]
    must.dtype("x", x, *(_FLOATS if _chip.on_950() else floats))
    must.ndim("x", x, 1, 8)
    must.hold(x.numel() > 0, "x", "not empty", tuple(x.shape))
    for name, row in (("gamma", gamma), ("beta", beta)):
        must.same_dtype(name, row, "x", x)
        _quantized.check_row(name, row, x)
    must.shape("beta", beta, tuple(gamma.shape))


def _check_shift(x, scale, offset):
    """The types of scales and offsets that go together on Ascend950."""
    must.dtype("scale", scale, *dict.fromkeys((x.dtype, torch.float32)))
    if x.dtype == torch.float32:
        kinds: tuple[torch.dtype, ...] = (torch.float32,)
    elif scale.dtype == torch.float32:
        kinds = (torch.float32, torch.int32)
    else:
        kinds = (x.dtype, torch.int8)
    must.dtype("offset", offset, *kinds)
    fits = tuple(scale.shape) in ((1,), (x.shape[-1],))
    must.hold(fits, "scale", f"of shape (1,) or ({x.shape[-1]},)", tuple(scale.shape))
    must.shape("offset", offset, tuple(scale.shape))


def _check_format(x, dst_dtype):
    everywhere = ("int8",) if _chip.on_310p() else ("int8", "int4")
    _formats.check("dst_dtype", dst_dtype, *_chip.formats(*everywhere))
    _formats.check_packing("x", x, _formats.chosen(dst_dtype))


@npu_op(
    "npu_rms_norm_quant(Tensor x, Tensor gamma, Tensor beta, Tensor scale, Tensor offset, "
    "float epsilon=1e-06, *, int? dst_dtype=None) -> Tensor"
)
def npu_rms_norm_quant(x, gamma, beta, scale, offset, epsilon, dst_dtype):
    r"""Normalizes the last dimension by its root mean square and quantizes.

    $$ y = \mathrm{round}\left(\frac{1}{scale}
       \left(\frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot \gamma + \beta\right) + offset\right) $$

    Halves round to even; results saturate. But on Ascend950 the values go through float16 before they become integers.

    Args:
        x: 1 to 8 dimensions; float16 or bfloat16 (Atlas inference series: float16; Ascend950 also float32).
        gamma, beta: (N) or (1, N), both alike, for a last dimension of N; the dtype of `x`.
        scale: one element, not 0; the dtype of `x`. Ascend950: (1) or (N), also float32.
        offset: of the shape of `scale`; int8. Ascend950: for float32 float32, else beside a float32 scale float32 or
            int32, beside another its dtype or int8.
        epsilon: added to the mean square; positive but on Ascend950.
        dst_dtype: int8 (the default) or, not on the Atlas inference series, quint4x2; on Ascend950 also float8_e4m3fn,
            float8_e5m2 and hifloat8.

    Returns:
        y in the shape of `x` (quint4x2: int32 with an eighth of the last dimension).

    Differs from upstream:
        The page's formula multiplies by the scale; CANN's kernels divide by it, and so does this.
    """
    y, _ = _quantized.normed(x, gamma, beta, epsilon, 1)
    if _chip.on_950():
        return _quantized.quantized(_quantized.affine(y, scale, offset, True), dst_dtype)
    scaled = _quantized.affine(y, 1 / wide(scale), offset, False)
    return _quantized.quantized(wide(scaled.half()), dst_dtype)


@npu_rms_norm_quant.check
def _(x, gamma, beta, scale, offset, epsilon, dst_dtype):
    _check_rows(x, gamma, beta)
    if _chip.on_950():
        _check_shift(x, scale, offset)
    else:
        must.same_dtype("scale", scale, "x", x)
        must.shape("scale", scale, (1,))
        must.dtype("offset", offset, torch.int8)
        must.shape("offset", offset, (1,))
        must.hold(epsilon > 0, "epsilon", "positive", epsilon)
    _check_format(x, dst_dtype)


npu_rms_norm_quant.samples = [
    Sample(
        lambda make: (
            make(2, 3, 16, dtype=torch.float16),
            make(16, dtype=torch.float16),
            make(16, dtype=torch.float16, seed=2),
            make(1, dtype=torch.float16, low=0.02, high=0.05),
            make(1, dtype=torch.int8, low=-5, high=6),
        )
    ),
    Sample(
        lambda make: (
            make(4, 16, dtype=torch.bfloat16),
            make(1, 16, dtype=torch.bfloat16),
            make(1, 16, dtype=torch.bfloat16, seed=2),
            make(1, dtype=torch.bfloat16, low=0.2, high=0.5),
            make(1, dtype=torch.int8, low=-2, high=2),
        ),
        {"dst_dtype": torch.quint4x2, "epsilon": 1e-5},
    ),
]


@npu_op(
    "npu_rms_norm_quant_v2(Tensor x, Tensor gamma, Tensor scale, *, Tensor? offset=None, "
    "Tensor? beta=None, float epsilon=1e-06, bool div_mode=True, int? dst_dtype=None)"
    " -> (Tensor, Tensor)",
    chips=("A5",),
)
def npu_rms_norm_quant_v2(x, gamma, scale, offset, beta, epsilon, div_mode, dst_dtype):
    r"""`npu_rms_norm_quant` with scales for each element of the last dimension and the reciprocal of the norm.

    Args:
        x: 1 to 8 dimensions; float16, bfloat16 or float32.
        gamma, beta: (N) or (1, N), both alike, for a last dimension of N; the dtype of `x`.
        scale: (1) or (N), not 0; the dtype of `x` or float32.
        offset: of the shape of `scale`; for float32 float32, else beside a float32 scale float32 or int32, beside
            another its dtype or int8.
        epsilon: added to the mean square.
        div_mode: whether the norm is divided by the scale (True) or multiplied.
        dst_dtype: int8 (the default), quint4x2, float8_e4m3fn, float8_e5m2 or hifloat8.

    Returns:
        y in the shape of `x` (quint4x2: int32 with an eighth of the last dimension), and 1 / rms in float32,
        `x.shape[:-1]` followed by 1.

    Constraints:
        Ascend950.

    Differs from upstream:
        Upstream's second result is empty unless `x` requires a gradient; here it always holds the values.
    """
    y, rstd = _quantized.normed(x, gamma, beta, epsilon, 1)
    return _quantized.quantized(_quantized.affine(y, scale, offset, div_mode), dst_dtype), rstd


@npu_rms_norm_quant_v2.check
def _(x, gamma, scale, offset, beta, dst_dtype):
    _check_rows(x, gamma, beta)
    _check_shift(x, scale, offset)
    _check_format(x, dst_dtype)


npu_rms_norm_quant_v2.samples = [
    Sample(
        lambda make: (
            make(2, 3, 16, dtype=torch.float16),
            make(16, dtype=torch.float16),
            make(16, low=0.02, high=0.05),
        )
    ),
    Sample(
        lambda make: (
            make(4, 16, dtype=torch.bfloat16),
            make(1, 16, dtype=torch.bfloat16),
            make(1, dtype=torch.bfloat16, low=20, high=50),
        ),
        lambda make: {
            "offset": make(1, dtype=torch.int8, low=-5, high=6),
            "beta": make(1, 16, dtype=torch.bfloat16),
            "div_mode": False,
            "epsilon": 1e-5,
        },
    ),
]
