"""npu_rms_norm_dynamic_mx_quant and npu_add_rms_norm_dynamic_mx_quant: RMS norm, then a microscaling format."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats, _mx
from torch_npu.ops.norm import _quantized


def _norm_and_quantize(x, gamma, beta, epsilon, algorithm, mode, code):
    y, rstd = _quantized.normed(x, gamma, beta, epsilon)
    name = _formats.chosen(code)
    return *_mx.quantize(y.to(x.dtype), name, mode=mode, algorithm=algorithm), rstd


@npu_op(
    "npu_rms_norm_dynamic_mx_quant(Tensor x, Tensor gamma, *, Tensor? beta=None, "
    'float epsilon=1e-06, int scale_alg=0, str round_mode="rint", int dst_type=296)'
    " -> (Tensor, Tensor, Tensor)",
    chips=("A5",),
)
def npu_rms_norm_dynamic_mx_quant(x, gamma, beta, epsilon, scale_alg, round_mode, dst_type):
    r"""Normalizes the last dimension by its root mean square, rounds to the dtype of `x`, and quantizes blocks of 32.

    $$ y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \cdot \gamma + \beta $$

    Formats and scales are those of `npu_dynamic_mx_quant`.

    Args:
        x: 1 to 7 dimensions; float16 or bfloat16.
        gamma: (N), the size of the last dimension; the dtype of `x` or float32.
        beta: (N), the dtype of `gamma`.
        epsilon: added to the mean square.
        scale_alg: 0; for 8-bit floats also 1.
        round_mode: "rint"; for 4-bit floats also "round" and "floor".
        dst_type: float4_e2m1fn_x2 (the default), float4_e1m2, float8_e4m3fn or float8_e5m2.

    Returns:
        y quantized (4-bit floats two to a uint8), the scales as uint8, (..., ceil(N / 64), 2), and 1 / rms in
        float32, `x.shape[:-1]` followed by 1.

    Constraints:
        Ascend950.

    Differs from upstream:
        Upstream's last result is empty unless `x` requires a gradient; here it always holds the values.
    """
    return _norm_and_quantize(x, gamma, beta, epsilon, scale_alg, round_mode, dst_type)


@npu_rms_norm_dynamic_mx_quant.check
def _(x, gamma, beta, scale_alg, round_mode, dst_type):
    name = _mx.check(round_mode, dst_type, scale_alg)
    _quantized.check_mx_norm(x, "x", gamma, beta)
    _mx.check_even("x", x, name)


npu_rms_norm_dynamic_mx_quant.samples = [
    Sample(lambda make: (make(3, 70, dtype=torch.bfloat16), make(70, dtype=torch.bfloat16))),
    Sample(
        lambda make: (make(2, 3, 64, dtype=torch.float16), make(64)),
        lambda make: {
            "beta": make(64, seed=3),
            "epsilon": 1e-5,
            "scale_alg": 1,
            "dst_type": torch.float8_e4m3fn,
        },
    ),
]


@npu_op(
    "npu_add_rms_norm_dynamic_mx_quant(Tensor x1, Tensor x2, Tensor gamma, *, Tensor? beta=None, "
    'float epsilon=1e-06, int scale_alg=0, str round_mode="rint", int dst_type=296)'
    " -> (Tensor, Tensor, Tensor, Tensor)",
    chips=("A5",),
)
def npu_add_rms_norm_dynamic_mx_quant(
    x1, x2, gamma, beta, epsilon, scale_alg, round_mode, dst_type
):
    r"""`npu_rms_norm_dynamic_mx_quant` of the sum x = x1 + x2, rounded to the dtype of `x1`.

    Args:
        x1, x2: 1 to 7 dimensions, alike; float16 or bfloat16.
        gamma, beta, epsilon, scale_alg, round_mode, dst_type: as for `npu_rms_norm_dynamic_mx_quant`.

    Returns:
        y quantized, x, the scales and 1 / rms.

    Constraints:
        Ascend950. `x1` and `x2` both require a gradient or neither does.

    Differs from upstream:
        Upstream's last result is empty unless `x1` requires a gradient; here it always holds the values.
    """
    x = (wide(x1) + wide(x2)).to(x1.dtype)
    y, scale, rstd = _norm_and_quantize(x, gamma, beta, epsilon, scale_alg, round_mode, dst_type)
    return y, x, scale, rstd


@npu_add_rms_norm_dynamic_mx_quant.check
def _(x1, x2, gamma, beta, scale_alg, round_mode, dst_type):
    name = _mx.check(round_mode, dst_type, scale_alg)
    _quantized.check_mx_norm(x1, "x1", gamma, beta)
    must.same_dtype("x2", x2, "x1", x1)
    must.shape("x2", x2, tuple(x1.shape))
    _mx.check_even("x1", x1, name)


npu_add_rms_norm_dynamic_mx_quant.samples = [
    Sample(
        lambda make: (
            *(make(3, 70, dtype=torch.bfloat16, seed=s) for s in (1, 2)),
            make(70, dtype=torch.bfloat16),
        )
    ),
    Sample(
        lambda make: (*(make(2, 3, 64, dtype=torch.float16, seed=s) for s in (1, 2)), make(64)),
        lambda make: {"beta": make(64, seed=3), "round_mode": "floor", "epsilon": 1e-5},
    ),
]
