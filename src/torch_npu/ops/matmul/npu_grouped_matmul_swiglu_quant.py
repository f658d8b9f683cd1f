"""npu_grouped_matmul_swiglu_quant: experts' int8 products, SwiGLU, int8 rows."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _chip, _dynamic
from torch_npu.ops.matmul import _experts
from torch_npu.ops.matmul.npu_grouped_matmul_swiglu_quant_v2 import NAMES, quantized_rows


@npu_op(
    "npu_grouped_matmul_swiglu_quant(Tensor x, Tensor weight, Tensor group_list, "
    "Tensor weight_scale, Tensor x_scale, *, Tensor? bias=None, Tensor? offset=None)"
    " -> (Tensor, Tensor, Tensor)",
    product=True,
)
def npu_grouped_matmul_swiglu_quant(x, weight, group_list, weight_scale, x_scale):
    """The A8W8 form of `npu_grouped_matmul_swiglu_quant_v2`: int8 rows and weights, ends of groups, int8 results.

    Args:
        x: (M, K), int8.
        weight: (E, K, N), int8.
        group_list: (E) int64, where each group of rows ends.
        weight_scale: (E, N); float32, float16 or bfloat16.
        x_scale: (M), float32.
        bias, offset: reserved.

    Returns:
        int8 (M, N / 2), the scales of its rows (M) in float32, and an empty place for offsets.

    Differs from upstream:
        Upstream takes weights in the format NZ alone; here ND is the same.
    """
    rows = _experts.Rows(x, weight, weight_scale, x_scale)
    order = _dynamic.PLAIN if _chip.on_950() else _dynamic.HALF
    q, scale = quantized_rows(
        "npu_grouped_matmul_swiglu_quant", rows, group_list, 0, None, "int8", order
    )
    return q, scale, q.new_zeros((), dtype=torch.float32)


@npu_grouped_matmul_swiglu_quant.meta
def _(x, weight):
    rows, columns = x.shape[0], weight.shape[-1] // 2
    return (
        x.new_empty(rows, columns),
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty((), dtype=torch.float32),
    )


@npu_grouped_matmul_swiglu_quant.check
def _(x, weight, group_list, weight_scale, x_scale, bias, offset):
    must.unset("bias", bias)
    must.unset("offset", offset)
    rows = _experts.Rows(x, weight, weight_scale, x_scale)
    _experts.check(rows, NAMES, ("a8w8",))
    must.hold(weight.shape[-1] % 2 == 0, "weight", "of an even number of columns", weight.shape[-1])
    _experts.check_list(group_list, weight.shape[0])


npu_grouped_matmul_swiglu_quant.samples = [
    Sample(
        lambda make: (
            make(7, 16, dtype=torch.int8, low=-9, high=9),
            make(2, 16, 8, dtype=torch.int8, low=-9, high=9),
            make(2, dtype=torch.int64, low=3, high=4),
            make(2, 8, low=0),
            make(7, low=0),
        )
    )
]
