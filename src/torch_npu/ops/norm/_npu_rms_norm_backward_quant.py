"""_npu_rms_norm_backward_quant: the gradients of an RMS norm, that of its input quantized."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _formats
from torch_npu.ops.norm import _quantized


@npu_op(
    "_npu_rms_norm_backward_quant(Tensor dy, Tensor x, Tensor rstd, Tensor gamma, Tensor scale_x, *, "
    'Tensor? offset_x=None, bool? div_mode=True, str quant_mode="static", int? dst_type=1)'
    " -> (Tensor, Tensor)",
    chips=("A5",),
)
def _npu_rms_norm_backward_quant(dy, x, rstd, gamma, scale_x, offset_x, div_mode, dst_type):
    r"""The gradients of `npu_rms_norm`, that of its input quantized with a given scale.

    $$ dx = r \left(dy \cdot \gamma - x r \cdot \mathrm{mean}(dy \cdot \gamma \cdot x r)\right), \qquad
       d\gamma = \sum dy \cdot x r, \qquad q = \mathrm{round}\left(\frac{dx}{scale} + offset\right) $$

    Args:
        dy, x: 2 to 8 dimensions, alike; float16, bfloat16 or float32.
        rstd: r = 1 / rms in float32, of shape `x.shape[:n]`, without the ones that `npu_rms_norm` puts behind it.
        gamma: of shape `x.shape[n:]`; the dtype of `dy` or float32.
        scale_x: one element; the dtype of `dy` or float32.
        offset_x: one element, int32.
        div_mode: whether dx is divided by the scale (True, and None) or multiplied.
        quant_mode: "static".
        dst_type: int8 (the default) or hifloat8.

    Returns:
        q in the shape of `dy`, and dgamma in float32.

    Constraints:
        Ascend950.
    """
    dims = gamma.dim()
    lead = x.shape[: x.dim() - dims]
    r = rstd.reshape(*lead, *(1 for _ in range(dims)))
    grad, unit = wide(dy), wide(x) * r
    scaled = grad * wide(gamma)
    over = tuple(range(-dims, 0))
    dx = (scaled - unit * (scaled * unit).mean(over, keepdim=True)) * r
    dgamma = (grad * unit).flatten(0, x.dim() - dims - 1).sum(0)
    divide = True if div_mode is None else div_mode
    values = _quantized.affine(dx, scale_x, offset_x, divide)
    return _quantized.quantized(values, dst_type), dgamma


@_npu_rms_norm_backward_quant.check
def _(dy, x, rstd, gamma, scale_x, offset_x, quant_mode, dst_type):
    must.dtype("dy", dy, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("dy", dy, 2, 8)
    must.same_dtype("x", x, "dy", dy)
    must.shape("x", x, tuple(dy.shape))
    must.ndim("gamma", gamma, 1, x.dim() - 1)
    must.dtype("gamma", gamma, *dict.fromkeys((dy.dtype, torch.float32)))
    must.shape("gamma", gamma, tuple(x.shape[x.dim() - gamma.dim() :]))
    must.dtype("rstd", rstd, torch.float32)
    lead = tuple(x.shape[: x.dim() - gamma.dim()])
    must.shape("rstd", rstd, lead)
    must.dtype("scale_x", scale_x, *dict.fromkeys((dy.dtype, torch.float32)))
    must.shape("scale_x", scale_x, (1,))
    must.dtype("offset_x", offset_x, torch.int32)
    must.shape("offset_x", offset_x, (1,))
    must.choice("quant_mode", quant_mode, ("static",))
    _formats.check("dst_type", dst_type, "int8", "hifloat8")


_npu_rms_norm_backward_quant.samples = [
    Sample(
        lambda make: (
            make(2, 4, 8, dtype=torch.float16),
            make(2, 4, 8, dtype=torch.float16, seed=2),
            make(2, 4, low=0.5, high=2),
            make(8, dtype=torch.float16),
            make(1, low=0.01, high=0.05),
        )
    ),
    Sample(
        lambda make: (
            make(3, 4, 8),
            make(3, 4, 8, seed=2),
            make(3, low=0.5, high=2),
            make(4, 8),
            make(1, low=20, high=50),
        ),
        lambda make: {
            "offset_x": make(1, dtype=torch.int32, low=-5, high=6),
            "div_mode": False,
            "dst_type": 290,
        },
    ),
]
