"""Batched matrix products with the heads in the middle."""

from __future__ import annotations

import torch

from softnpu.contrib.kernels._definition import Definition
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide

__all__ = ["batch_matmul_transpose"]


@Definition
def batch_matmul_transpose(tensor_a, tensor_b, tensor_c, format_mode):
    """c[m, h] = a[m, h] b[h], for a (M, H, K), b (H, K, N) or NZ (H, N / 16, K, 16), c of M * H * N elements.

    c is written, though the schema does not say so. The quantization has no effect on half precision.
    """
    if format_mode == "NZ":
        tensor_b = tensor_b.transpose(1, 2).flatten(2)
    product = wide(tensor_a).transpose(0, 1) @ wide(tensor_b)
    tensor_c.view(product.transpose(0, 1).shape).copy_(product.transpose(0, 1))


@batch_matmul_transpose.meta
def _():
    return None


@batch_matmul_transpose.check
def _(tensor_a, tensor_b, tensor_c, format_mode, quant_mode):
    must.choice("format_mode", format_mode, (None, "ND", "NZ"))
    modes = (None, "per_channel_symm", "per_channel_asymm", "per_token_symm")
    must.choice("quant_mode", quant_mode, modes)
    must.dtype("tensor_a", tensor_a, torch.float16, torch.bfloat16)
    must.ndim("tensor_a", tensor_a, 3)
    rows, heads, depth = tensor_a.shape
    must.hold(1 <= rows <= 1024, "tensor_a", "of 1 to 1024 rows", rows)
    must.same_dtype("tensor_b", tensor_b, "tensor_a", tensor_a)
    must.same_dtype("tensor_c", tensor_c, "tensor_a", tensor_a)
    nz = format_mode == "NZ"
    must.shape("tensor_b", tensor_b, (heads, None, depth, 16) if nz else (heads, depth, None))
    width = tensor_b.shape[1] * 16 if nz else tensor_b.shape[2]
    must.hold(
        tensor_c.numel() == rows * heads * width,
        "tensor_c",
        f"of {rows} x {heads} x {width} elements",
        tuple(tensor_c.shape),
    )
