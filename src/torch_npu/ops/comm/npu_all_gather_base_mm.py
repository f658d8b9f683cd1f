"""npu_all_gather_base_mm: the rows of all ranks, times a matrix."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group
from torch_npu.ops.comm._products import check_operands, result_dtype, scaled_product


@npu_op(
    "npu_all_gather_base_mm(Tensor self, Tensor x2, str hcom, int world_size, *, Tensor? bias=None, "
    "Tensor? x1_scale=None, Tensor? x2_scale=None, int gather_index=0, bool gather_output=True, "
    "int comm_turn=0, ScalarType? output_dtype=None, str? comm_mode=None) -> (Tensor, Tensor)",
    ge="AllGatherMatmul",
    product=True,
)
def npu_all_gather_base_mm(self, x2, hcom, bias, x1_scale, x2_scale, gather_output, output_dtype):
    r"""Gathers x1 from all ranks of a group and multiplies it by x2: the first half of tensor parallelism.

    $$ y = \mathrm{allgather}(x_1)\, x_2 + b $$
    $$ y = \mathrm{allgather}(s_1)\, s_2 \cdot (\mathrm{allgather}(x_1)\, x_2 + b) \quad \text{(int8)} $$

    Args:
        self: x1 of shape (m, k), float16, bfloat16 or int8; k in [256, 65535) but in mode "aiv".
        x2: (k, n), of the dtype of x1; may be a transposed view.
        hcom: the name of the group.
        world_size: its number of ranks: 2, 4 or 8; 16 and 32 too on Atlas A3.
        bias: (n,), of the dtype of x1.
        x1_scale: s1 of this rank, (m, 1), float32; int8 only.
        x2_scale: s2, (1, n), float32, or int64 from npu_trans_quant_param; int8 only, and required there.
        gather_index: 0: x1 is gathered.
        gather_output: whether the gathered x1 is returned.
        comm_turn: 0.
        output_dtype: of int8 operands with a float32 scale: bfloat16 (default) or float16.
        comm_mode: "ai_cpu" (default), on Ascend950 "ccu" too, elsewhere "aiv", which int8 operands need and which
            always returns the gathered x1.

    Returns:
        y of shape (m * world_size, n), and the gathered x1 of shape (m * world_size, k), or an empty tensor.
    """
    group = _group.find(hcom)
    gathered = group.all_gather(self)
    scales = None if x1_scale is None else group.all_gather(x1_scale)
    y = scaled_product(gathered, x2, bias, scales, x2_scale)
    y = y.to(result_dtype(self, x2_scale, output_dtype))
    return y, gathered if gather_output else self.new_empty(0)


@npu_all_gather_base_mm.check
def _(self, gather_index, gather_output, **operands):
    check_operands(self, **operands, gathers=True)
    must.unset("gather_index", gather_index, 0)
    must.hold(
        gather_output or operands["comm_mode"] != "aiv",
        "gather_output",
        "True with comm_mode 'aiv'",
        gather_output,
    )


@npu_all_gather_base_mm.meta
def _(self, x2, world_size, x2_scale, gather_output, output_dtype):
    rows = self.shape[0] * world_size
    y = self.new_empty((rows, x2.shape[1]), dtype=result_dtype(self, x2_scale, output_dtype))
    return y, self.new_empty((rows, self.shape[1]) if gather_output else (0,))


npu_all_gather_base_mm.samples = [
    Sample(lambda make: (make(3, 256, dtype=torch.float16), make(256, 8, dtype=torch.float16),
                         "softnpu%mirror_2", 2)),
    Sample(lambda make: (make(2, 256, dtype=torch.bfloat16), make(8, 256, dtype=torch.bfloat16).t(),
                         "softnpu%mirror_4", 4), {"gather_output": False, "comm_mode": "ai_cpu"}),
    Sample(lambda make: (make(2, 256, dtype=torch.int8, low=-9, high=9),
                         make(256, 8, dtype=torch.int8, low=-9, high=9), "softnpu%mirror_2", 2),
           lambda make: {"x1_scale": make(2, 1), "x2_scale": make(1, 8), "comm_mode": "aiv",
                         "output_dtype": torch.float16}),
]  # fmt: skip
