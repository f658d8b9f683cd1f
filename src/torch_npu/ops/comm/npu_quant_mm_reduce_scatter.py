"""npu_quant_mm_reduce_scatter: a quantized product, summed over the ranks and shared out."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops.comm import _group
from torch_npu.ops.comm import _quant_products as quant


@npu_op(
    "npu_quant_mm_reduce_scatter(Tensor self, Tensor x2, str hcom, int world_size, *,"
    " str reduce_op='sum', Tensor? bias=None, Tensor? x1_scale=None, Tensor? x2_scale=None,"
    " Tensor? quant_scale=None, int block_size=0, int comm_turn=0, int[]? group_sizes=None,"
    " bool amax_output=False, int? y_dtype=None, int? x1_dtype=None, int? x2_dtype=None,"
    " int? x1_scale_dtype=None, int? x2_scale_dtype=None, str? comm_mode=None)"
    " -> (Tensor, Tensor)",
    ge="MatmulReduceScatterV2",
    product=True,
)
def npu_quant_mm_reduce_scatter(**arguments):
    r"""Multiplies quantized matrices, adds the results of all ranks and gives each its part of the rows.

    $$ y = \mathrm{reducescatter}(s_1 s_2 \cdot (x_1 x_2) + b) $$

    The sum over the ranks is in fp32 and rounded once.

    Args:
        self: x1, (m, k), m a multiple of the ranks; types as in `npu_all_gather_quant_mm`.
        x2: (k, n).
        hcom: the name of the group.
        world_size: its number of ranks, a power of two from 2 to 64.
        reduce_op: "sum".
        bias: b, (n,); float16, bfloat16 or float32.
        x1_scale: s1, as in `npu_all_gather_quant_mm`.
        x2_scale: s2, as there.
        quant_scale: reserved.
        block_size: reserved.
        comm_turn: 0.
        group_sizes: as there.
        amax_output: reserved.
        y_dtype: as there.
        x1_dtype: as there.
        x2_dtype: as there.
        x1_scale_dtype: as there.
        x2_scale_dtype: as there.
        comm_mode: as there.

    Returns:
        y, (m / world_size, n), and an empty tensor for the largest value.
    """
    total = quant.scaled_product(arguments, arguments["self"], arguments["x1_scale"], inside=False)
    total = total.to(quant.result_dtype(arguments))  # as the card's ranks exchange it
    part = _group.find(arguments["hcom"]).reduce_scatter(total)
    return part, part.new_empty(0, dtype=torch.float32)


@npu_quant_mm_reduce_scatter.check
def _(**arguments):
    must.choice("reduce_op", arguments["reduce_op"], ("sum",))
    quant.check(arguments)
    rows, size = arguments["self"].shape[0], arguments["world_size"]
    must.hold(rows % size == 0, "self", f"of rows divisible by world_size ({size})", rows)


@npu_quant_mm_reduce_scatter.meta
def _(**arguments):
    x1, size = arguments["self"], arguments["world_size"]
    columns = _mx.shape(arguments["x2"], arguments["x2_dtype"])[1]
    y = x1.new_empty((x1.shape[0] // size, columns), dtype=quant.result_dtype(arguments))
    return y, x1.new_empty(0, dtype=torch.float32)


npu_quant_mm_reduce_scatter.samples = [
    Sample(lambda make: (make(4, 64).half(), make(64, 8).half(), "softnpu%mirror_2", 2)),
    Sample(
        lambda make: (
            make(4, 64, dtype=torch.int8, low=-9, high=9),
            make(64, 8, dtype=torch.int8, low=-9, high=9),
            "softnpu%mirror_2",
            2,
        ),
        lambda make: {"x1_scale": make(4, 1), "x2_scale": make(1, 8), "y_dtype": 15},
    ),
]
