"""npu_grouped_matmul_swiglu_quant: experts' int8 products, SwiGLU, int8 rows."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _dynamic
from torch_npu.ops._shared._gemm import matrix_shape
from torch_npu.ops.matmul import _experts
from torch_npu.ops.matmul._swiglu_rules import NAMES as _NAMES
from torch_npu.ops.matmul._swiglu_rules import check_sizes
from torch_npu.ops.matmul.npu_grouped_matmul_swiglu_quant_v2 import from_blocks, quantized_rows


@npu_op(
    "npu_grouped_matmul_swiglu_quant(Tensor x, Tensor weight, Tensor group_list, "
    "Tensor weight_scale, Tensor x_scale, *, Tensor? bias=None, Tensor? offset=None)"
    " -> (Tensor, Tensor, Tensor)",
    chips=("A2", "A3"),
    product=True,
)
def npu_grouped_matmul_swiglu_quant(x, weight, group_list, weight_scale, x_scale, bias):
    """The forms A8W8 and A8W4 of `npu_grouped_matmul_swiglu_quant_v2`: int8 rows, ends of groups, int8 results.

    Args:
        x: (M, K), int8.
        weight: (E, K, N), int8, or int32 with eight int4 each; or its NZ blocks written out, (E, N / c, K / 16, 16, c)
            with the numbers of 32 bytes in c.
        group_list: int64, where each group of rows ends; at most E numbers.
        weight_scale: (E, N); float32, float16 or bfloat16. Beside int4 (E, N) or (E, G, N), packed.
        x_scale: (M), float32.
        bias: beside int4 (E, N) float32, as `weight_assist_matrix` of the second version; else reserved.
        offset: reserved.

    Returns:
        int8 (M, N / 2), the scales of its rows (M) in float32, and an empty place for offsets.

    Constraints:
        N is even and up to 10240, K below 65536, beside int4 below 20000.

    Differs from upstream:
        Upstream takes int8 weights in the format NZ alone; here ND is the same. A tensor that was cast to NZ lies in
        its natural order here, so that a view of it as blocks has other numbers than on the card.
    """
    rows = _experts.Rows(x, from_blocks(weight), weight_scale, x_scale, bias)
    q, scale = quantized_rows(
        "npu_grouped_matmul_swiglu_quant", rows, group_list, 0, None, "int8", _dynamic.HALF
    )
    return q, scale, q.new_zeros((), dtype=torch.float32)


@npu_grouped_matmul_swiglu_quant.meta
def _(x, weight):
    rows, columns = x.shape[0], matrix_shape(from_blocks(weight))[1] // 2
    return (
        x.new_empty(rows, columns),
        x.new_empty(rows, dtype=torch.float32),
        x.new_empty((), dtype=torch.float32),
    )


@npu_grouped_matmul_swiglu_quant.check
def _(x, weight, group_list, weight_scale, x_scale, bias, offset):
    must.unset("offset", offset)
    rows = _experts.Rows(x, from_blocks(weight), weight_scale, x_scale, bias)
    _experts.check(rows, _NAMES, ("a8w8", "a8w4"))
    if rows.form == "a8w8":
        must.unset("bias", bias)
    else:
        must.present("bias", bias, "with int4 weights")
        must.dtype("bias", bias, torch.float32)
        must.shape("bias", bias, (weight.shape[0], rows.columns))
    check_sizes(rows)
    _experts.check_list(group_list, weight.shape[0], fewer=True)


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
