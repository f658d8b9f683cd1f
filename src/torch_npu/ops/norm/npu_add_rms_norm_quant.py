"""npu_add_rms_norm_quant: a sum, its RMS norm, and one or two quantizations of that."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _formats
from torch_npu.ops.norm import _quantized

_HALF, _BF16, _FLOAT, _INT = torch.float16, torch.bfloat16, torch.float32, torch.int32

#: (x, scales, zero points) as the operator's definition lists them (ops-nn, add_rms_norm_quant_v2/op_host)
_TYPES = {(_HALF, _FLOAT, _INT), (_BF16, _BF16, _BF16), (_BF16, _FLOAT, _INT)}
_MORE_OF_950 = {
    (_FLOAT, _FLOAT, _FLOAT),
    (_HALF, _HALF, _HALF),
    (_HALF, _FLOAT, _FLOAT),
    (_BF16, _FLOAT, _FLOAT),
}


def _norm(exact, x, gamma, beta, epsilon, single):
    """The norm of the sum, unrounded or rounded where the card's kernel rounds it.

    A2, A3 and 310P: float16 works on the rounded sum, and rounds x / rms(x) and its product with gamma; bfloat16 works
    on the exact sum, but with beta on the rounded one. With one scale for all (`single`), and on Ascend950, nothing
    rounds in between.
    """
    if _chip.on_950() or single or x.dtype == torch.float32:
        return _quantized.normed(exact, gamma, beta, epsilon)[0]
    if x.dtype == torch.bfloat16:
        return _quantized.normed(exact if beta is None else x, gamma, beta, epsilon)[0]
    ones = torch.ones_like(gamma)
    y = wide(_quantized.normed(x, ones, None, epsilon)[0].to(x.dtype) * gamma)
    return y if beta is None else y + wide(beta)


@npu_op(
    "npu_add_rms_norm_quant(Tensor x1, Tensor x2, Tensor gamma, Tensor scales1, "
    "Tensor? zero_points1, Tensor? beta=None, Tensor? scales2=None, Tensor? zero_points2=None, *, "
    "int axis=-1, float epsilon=1e-06, bool div_mode=True, int? dst_type=None)"
    " -> (Tensor, Tensor, Tensor)"
)
def npu_add_rms_norm_quant(
    x1, x2, gamma, scales1, zero_points1, beta, scales2, zero_points2, epsilon, div_mode, dst_type
):
    r"""Adds, normalizes by the root mean square over the dimensions that `gamma` covers, and quantizes.

    $$ x = x_1 + x_2, \qquad y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot \gamma + \beta, \qquad
       y_i = \mathrm{round}\left(\frac{y}{scales_i} + zero_i\right) $$

    Halves round to even; results saturate. With `div_mode` False, y is multiplied by the scales.

    Args:
        x1, x2: 1 to 8 dimensions, alike; float16 or bfloat16 (Atlas inference series: float16; Ascend950 also
            float32).
        gamma: of shape `x1.shape[n:]` and the dtype of `x1`.
        scales1: of the shape of `gamma` or one element; float32, for bfloat16 data also bfloat16 (Ascend950: for
            float16 data also float16).
        zero_points1: of the shape of `scales1`; int32 beside float32 scales, else the dtype of the scales
            (Ascend950: beside float32 scales also float32).
        beta: of the shape and dtype of `gamma`.
        scales2, zero_points2: of the shape of `gamma` and the dtypes of `scales1` and `zero_points1`.
        axis: -1.
        epsilon: added to the mean square.
        div_mode: whether y is divided by the scales or multiplied.
        dst_type: int8 (the default); on Ascend950 also float8_e4m3fn, float8_e5m2 and hifloat8.

    Returns:
        y1 and y2 in the shape of `x1` (y2 is 0 without `scales2`, on the card whatever the memory held), and x in
        the dtype of `x1`.

    Constraints:
        On Atlas inference series the normalized dimensions have at least 32 bytes.
    """
    exact = wide(x1) + wide(x2)
    x = exact.to(x1.dtype)
    y = _norm(exact, x, gamma, beta, epsilon, scales1.numel() == 1)
    y1 = _quantized.quantized(_quantized.affine(y, scales1, zero_points1, div_mode), dst_type)
    if scales2 is None:
        return y1, torch.zeros_like(y1), x
    second = _quantized.affine(y, scales2, zero_points2, div_mode)
    return y1, _quantized.quantized(second, dst_type), x


@npu_add_rms_norm_quant.check
def _(x1, x2, gamma, scales1, zero_points1, beta, scales2, zero_points2, axis, dst_type):
    allowed = _TYPES | _MORE_OF_950 if _chip.on_950() else _TYPES
    if _chip.on_310p():
        allowed = {(_HALF, _FLOAT, _INT)}
    must.dtype("x1", x1, *dict.fromkeys(t[0] for t in sorted(allowed, key=str)))
    must.ndim("x1", x1, 1, 8)
    must.same_dtype("x2", x2, "x1", x1)
    must.shape("x2", x2, tuple(x1.shape))
    must.same_dtype("gamma", gamma, "x1", x1)
    must.ndim("gamma", gamma, 1, x1.dim())
    must.shape("gamma", gamma, tuple(x1.shape[x1.dim() - gamma.dim() :]))
    scales = sorted({t[1] for t in allowed if t[0] == x1.dtype}, key=str)
    must.dtype("scales1", scales1, *scales)
    _quantized.check_like("scales1", scales1, gamma, single=True)
    points = sorted({t[2] for t in allowed if t[:2] == (x1.dtype, scales1.dtype)}, key=str)
    must.dtype("zero_points1", zero_points1, *points)
    _quantized.check_like("zero_points1", zero_points1, scales1)
    must.same_dtype("beta", beta, "gamma", gamma)
    _quantized.check_like("beta", beta, gamma)
    must.same_dtype("scales2", scales2, "scales1", scales1)
    _quantized.check_like("scales2", scales2, gamma, single=True)
    must.dtype("zero_points2", zero_points2, *points)
    _quantized.check_like("zero_points2", zero_points2, gamma, single=True)
    must.hold(axis == -1, "axis", "-1", axis, ErrCode.PARAM, "axis only support -1.")
    _formats.check("dst_type", dst_type, *_quantized.formats())
    if _chip.on_310p():
        size = gamma.numel() * gamma.element_size()
        must.hold(size >= 32, "gamma", "of at least 32 bytes", size)


npu_add_rms_norm_quant.samples = [
    Sample(
        lambda make: (
            *(make(4, 32, dtype=torch.float16, seed=s) for s in (1, 2)),
            make(32, dtype=torch.float16),
            make(32, low=0.02, high=0.05),
            make(32, dtype=torch.int32, low=-9, high=9),
        )
    ),
    Sample(
        lambda make: (
            *(make(2, 3, 8, dtype=torch.bfloat16, seed=s) for s in (1, 2)),
            make(3, 8, dtype=torch.bfloat16),
            make(1, dtype=torch.bfloat16, low=20, high=30),
            None,
        ),
        lambda make: {
            "beta": make(3, 8, dtype=torch.bfloat16),
            "scales2": make(3, 8, dtype=torch.bfloat16, low=9, high=30),
            "zero_points2": make(3, 8, dtype=torch.bfloat16),
            "div_mode": False,
            "epsilon": 1e-5,
        },
    ),
]
