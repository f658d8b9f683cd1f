"""npu_quant_matmul_reduce_sum: products of integers, scaled and added up."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._gemm import int_product


@npu_op(
    "npu_quant_matmul_reduce_sum(Tensor x1, Tensor x2, *, Tensor? x1_scale=None, "
    "Tensor? x2_scale=None) -> Tensor",
    chips=("A2", "A3"),
    product=True,
)
def npu_quant_matmul_reduce_sum(x1, x2, x1_scale, x2_scale):
    r"""The sum of a batch of quantized products, each row of each with a scale.

    $$ y = \sum_b (x_{1,b} x_{2,b}) \cdot s_{1,b} \cdot s_2 $$

    Args:
        x1: (B, M, K), int8.
        x2: (B, K, N), int8.
        x1_scale: $s_1$, (B, M), float32; required.
        x2_scale: $s_2$, (N), bfloat16; required.

    Returns:
        y of shape (M, N), bfloat16. Products are added in bfloat16, as the card's kernel adds them to its result.

    Constraints:
        A2 and A3.

    Differs from upstream:
        Upstream takes `x2` in the format NZ alone; here ND is the same.
    """
    products = int_product(x1, x2).float() * x2_scale.float() * x1_scale.unsqueeze(-1)
    y = x1.new_zeros(products.shape[1:], dtype=torch.bfloat16)
    for product in products.to(torch.bfloat16):
        y = y + product
    return y


@npu_quant_matmul_reduce_sum.check
def _(x1, x2, x1_scale, x2_scale):
    must.dtype("x1", x1, torch.int8)
    must.dtype("x2", x2, torch.int8)
    must.ndim("x1", x1, 3)
    must.ndim("x2", x2, 3)
    batch, rows, depth = x1.shape
    must.shape("x2", x2, (batch, depth, None))
    for name, scale in (("x1_scale", x1_scale), ("x2_scale", x2_scale)):
        must.present(name, scale, "always")
    must.dtype("x1_scale", x1_scale, torch.float32)
    must.shape("x1_scale", x1_scale, (batch, rows))
    must.dtype("x2_scale", x2_scale, torch.bfloat16)
    must.shape("x2_scale", x2_scale, (x2.shape[-1],))
    must.hold(x1.numel() > 0, "x1", "not empty", tuple(x1.shape), ErrCode.PARAM)


npu_quant_matmul_reduce_sum.samples = [
    Sample(
        lambda make: (
            make(3, 4, 16, dtype=torch.int8, low=-9, high=9),
            make(3, 16, 8, dtype=torch.int8, low=-9, high=9),
        ),
        lambda make: {
            "x1_scale": make(3, 4, low=0),
            "x2_scale": make(8, dtype=torch.bfloat16, low=0),
        },
    )
]
