"""npu_mm_reduce_scatter_base: a product whose partial sums are added over the ranks and shared out."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group
from torch_npu.ops.comm._products import check_operands, result_dtype, scaled_product


@npu_op(
    "npu_mm_reduce_scatter_base(Tensor self, Tensor x2, str hcom, int world_size, *, str reduce_op='sum', "
    "Tensor? bias=None, Tensor? x1_scale=None, Tensor? x2_scale=None, int comm_turn=0, "
    "ScalarType? output_dtype=None, str? comm_mode=None) -> Tensor",
    ge="MatmulReduceScatter",
    product=True,
)
def npu_mm_reduce_scatter_base(self, x2, hcom, bias, x1_scale, x2_scale, output_dtype):
    r"""Multiplies, adds the results of all ranks, and gives each rank its part of the rows.

    $$ y = \mathrm{reducescatter}(x_1 x_2 + b) $$
    $$ y = \mathrm{reducescatter}(s_1 s_2 \cdot (x_1 x_2 + b)) \quad \text{(int8)} $$

    The sum over the ranks is in fp32 and rounded once.

    Args:
        self: x1 of shape (m, k), float16, bfloat16 or int8; k in [256, 65535), m a multiple of world_size.
        x2: (k, n), of the dtype of x1; may be a transposed view.
        hcom: the name of the group.
        world_size: its number of ranks: 2, 4 or 8; 16 and 32 too on Atlas A3.
        reduce_op: "sum".
        bias: (n,), of the dtype of x1.
        x1_scale: s1, (m, 1), float32; int8 only.
        x2_scale: s2, (1, n), float32, or int64 from npu_trans_quant_param; int8 only, and required there.
        comm_turn: 0.
        output_dtype: of int8 operands with a float32 scale: bfloat16 (default) or float16.
        comm_mode: "ai_cpu" (default), on Ascend950 "ccu" too, elsewhere "aiv", which int8 operands need.

    Returns:
        y of shape (m / world_size, n).
    """
    total = scaled_product(self, x2, bias, x1_scale, x2_scale)
    total = total.to(result_dtype(self, x2_scale, output_dtype))  # as the card's ranks exchange it
    return _group.find(hcom).reduce_scatter(total)


@npu_mm_reduce_scatter_base.check
def _(self, reduce_op, **operands):
    check_operands(self, **operands, gathers=False)
    must.choice("reduce_op", reduce_op, ("sum",))
    world_size = operands["world_size"]
    must.hold(
        self.shape[0] % world_size == 0,
        "self",
        f"of m divisible by world_size ({world_size})",
        self.shape[0],
    )


@npu_mm_reduce_scatter_base.meta
def _(self, x2, world_size, x2_scale, output_dtype):
    shape = (self.shape[0] // world_size, x2.shape[1])
    return self.new_empty(shape, dtype=result_dtype(self, x2_scale, output_dtype))


npu_mm_reduce_scatter_base.samples = [
    Sample(lambda make: (make(4, 256, dtype=torch.float16), make(256, 8, dtype=torch.float16),
                         "softnpu%mirror_2", 2)),
    Sample(lambda make: (make(8, 256, dtype=torch.bfloat16), make(8, 256, dtype=torch.bfloat16).t(),
                         "softnpu%mirror_4", 4), lambda make: {"bias": make(8, dtype=torch.bfloat16)}),
    Sample(lambda make: (make(4, 256, dtype=torch.int8, low=-9, high=9),
                         make(256, 8, dtype=torch.int8, low=-9, high=9), "softnpu%mirror_2", 2),
           lambda make: {"x1_scale": make(4, 1), "x2_scale": make(1, 8), "comm_mode": "aiv"}),
]  # fmt: skip
