"""Norms of `_C_ascend`."""

from __future__ import annotations

from typing import Any

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from torch_npu.ops import _check as must
from torch_npu.ops.norm.npu_add_rms_norm_dynamic_quant import npu_add_rms_norm_dynamic_quant

__all__ = ["OPERATORS"]


def npu_add_rms_norm_bias(
    x1: Any, x2: Any, gamma: Any, beta: Any = None, epsilon: float = 1e-6
) -> tuple[Any, Any, Any]:
    r"""x = x1 + x2, y = x / sqrt(mean(x^2) + epsilon) * gamma + beta; y, the reciprocal root and x.

    The normalized value is rounded to the dtype; in float16 the sum before it is used, and the product with gamma, too.
    """
    if beta is None:
        return torch.ops.npu.npu_add_rms_norm(x1, x2, gamma, epsilon)
    x = x1 + x2
    wide = x1.float() + x2.float() if x.dtype == torch.bfloat16 else x.float()
    dims = tuple(range(x.dim() - gamma.dim(), x.dim()))
    rstd = torch.rsqrt(wide.square().mean(dims, keepdim=True) + epsilon)
    scaled = (wide * rstd).to(x.dtype)
    if x.dtype == torch.float16:
        return scaled * gamma.to(x.dtype) + beta.to(x.dtype), rstd, x
    return (scaled.float() * gamma.float() + beta.float()).to(x.dtype), rstd, x


def npu_gemma_rms_norm(x: Any, gamma: Any, epsilon: float = 1e-6) -> tuple[Any, Any]:
    """The RMS norm with the scale 1 + gamma."""
    return torch.ops.npu.npu_gemma_rms_norm(x, gamma, epsilon)


@ascend_op(
    "npu_rms_norm_dynamic_quant(Tensor x, Tensor gamma, Tensor? smooth_scale=None, "
    "Tensor? beta=None, float epsilon=1e-6) -> (Tensor y_out, Tensor scale_out)"
)
def npu_rms_norm_dynamic_quant(x, gamma, smooth_scale, beta, epsilon):
    """`npu_add_rms_norm_dynamic_quant` of one tensor, with its first result alone."""
    found = npu_add_rms_norm_dynamic_quant.as_function("body")(
        x,
        torch.zeros_like(x),
        gamma,
        smooth_scale1=smooth_scale,
        beta=beta,
        epsilon=epsilon,
        output_mask=[True, False],
    )
    return found[0], found[3]


@npu_rms_norm_dynamic_quant.check
def _(x, gamma, smooth_scale, beta, epsilon):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 1, 8)
    must.hold(x.numel() > 0, "x", "not empty", tuple(x.shape))
    must.hold(epsilon > 0, "epsilon", "positive", epsilon)
    for name, row in (("gamma", gamma), ("smooth_scale", smooth_scale), ("beta", beta)):
        must.same_dtype(name, row, "x", x)
        must.shape(name, row, (x.shape[-1],))


OPERATORS = {
    "npu_add_rms_norm_bias(Tensor x1, Tensor x2, Tensor gamma, Tensor? beta=None, "
    "float epsilon=1e-6) -> (Tensor y, Tensor rstd, Tensor x)": npu_add_rms_norm_bias,
    "npu_gemma_rms_norm(Tensor x, Tensor gamma, float epsilon=1e-6) -> (Tensor y, Tensor rstd)": (
        npu_gemma_rms_norm
    ),
}
