"""npu_dequant_bias: int32 sums back to floats, with a bias."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op


@npu_op(
    "npu_dequant_bias(Tensor x, Tensor weight_scale, Tensor? activation_scale, Tensor? bias, *, "
    "ScalarType? output_dtype=None) -> Tensor"
)
def npu_dequant_bias(x, weight_scale, activation_scale, bias, output_dtype):
    r"""Scales integer sums by columns and rows.

    $$ y = (x + bias_{int32}) \cdot weight \cdot activation + bias_{float} $$

    Args:
        x: (M, N), int32; M at most 25000.
        weight_scale: (N); float32 (for float16 results) or bfloat16 (for bfloat16).
        activation_scale: (M), float32.
        bias: (N); int32 is added before the scales, float32, float16 and bfloat16 after them.
        output_dtype: float16 (the default) or bfloat16.

    Returns:
        y of shape (M, N).
    """
    if bias is not None and bias.dtype == torch.int32:
        x = x + bias
    y = x.float() * weight_scale.float()
    if activation_scale is not None:
        y = y * activation_scale.unsqueeze(-1)
    if bias is not None and bias.dtype != torch.int32:
        y = y + bias.float()
    return y.to(output_dtype or torch.float16)


@npu_dequant_bias.check
def _(x, weight_scale, activation_scale, bias, output_dtype):
    must.dtype("x", x, torch.int32)
    must.ndim("x", x, 2)
    rows, columns = x.shape
    must.hold(rows <= 25000, "x", "of at most 25000 rows", rows)
    must.choice("output_dtype", output_dtype, (None, torch.float16, torch.bfloat16))
    wanted = torch.bfloat16 if output_dtype == torch.bfloat16 else torch.float32
    must.dtype("weight_scale", weight_scale, wanted)
    must.shape("weight_scale", weight_scale, (columns,))
    must.dtype("activation_scale", activation_scale, torch.float32)
    must.shape("activation_scale", activation_scale, (rows,))
    must.dtype("bias", bias, torch.int32, torch.float32, torch.float16, torch.bfloat16)
    must.shape("bias", bias, (columns,))


npu_dequant_bias.samples = [
    Sample(
        lambda make: (
            make(4, 8, dtype=torch.int32, low=-999, high=999),
            make(8),
            make(4),
            make(8, dtype=torch.float16),
        )
    ),
    Sample(
        lambda make: (
            make(4, 8, dtype=torch.int32, low=-999, high=999),
            make(8, dtype=torch.bfloat16),
            None,
            make(8, dtype=torch.int32, low=-99, high=99),
        ),
        {"output_dtype": torch.bfloat16},
    ),
]
