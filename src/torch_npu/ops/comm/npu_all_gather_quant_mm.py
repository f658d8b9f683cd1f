"""npu_all_gather_quant_mm: the quantized rows of all ranks, times a matrix."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _mx_matmul as _mx
from torch_npu.ops.comm import _group
from torch_npu.ops.comm import _quant_products as quant


@npu_op(
    "npu_all_gather_quant_mm(Tensor self, Tensor x2, str hcom, int world_size, *,"
    " Tensor? bias=None, Tensor? x1_scale=None, Tensor? x2_scale=None, Tensor? quant_scale=None,"
    " int block_size=0, int gather_index=0, bool gather_output=True, int comm_turn=0,"
    " int[]? group_sizes=None, bool amax_output=False, int? y_dtype=None, int? x1_dtype=None,"
    " int? x2_dtype=None, int? x1_scale_dtype=None, int? x2_scale_dtype=None,"
    " str? comm_mode=None) -> (Tensor, Tensor, Tensor)",
    ge="AllGatherMatmulV2",
    product=True,
)
def npu_all_gather_quant_mm(**arguments):
    r"""Gathers x1 and its scales from all ranks of a group and multiplies.

    $$ y = \mathrm{allgather}(s_1)\, s_2 \cdot (\mathrm{allgather}(x_1)\, x_2 + b) $$

    By blocks and with microscaling, b is added after scaling.

    Args:
        self: x1, (m, k): float16 or bfloat16 without scales; int8; on Ascend950 8-bit floats, or
            4-bit floats with microscaling.
        x2: (k, n), of the type of x1 (8-bit floats may differ); may be a transposed view.
        hcom: the name of the group.
        world_size: its number of ranks, a power of two from 2 to 64.
        bias: b, (n,); float16, bfloat16 or float32.
        x1_scale: s1 of this rank: int8: (m, 1) float32 or None; 8-bit floats: (1,), or
            (ceil(m / 128), ceil(k / 128)) by blocks, float32; microscaling: (m, ceil(k / 64), 2).
        x2_scale: s2: int8: (1, n) float32, or int64 from npu_trans_quant_param; 8-bit floats: (1,),
            or (ceil(k / 128), ceil(n / 128)); microscaling: (ceil(k / 64), n, 2).
        quant_scale: reserved.
        block_size: reserved.
        gather_index: 0: x1 is gathered.
        gather_output: whether the gathered x1 is returned.
        comm_turn: 0.
        group_sizes: None, [128, 128, 128] by blocks, [1, 1, 32] with microscaling.
        amax_output: reserved.
        y_dtype: of quantized operands: float16, bfloat16 or float32.
        x1_dtype: the type of the bytes of `self`: hifloat8, or a 4-bit float with microscaling.
        x2_dtype: as `x1_dtype`.
        x1_scale_dtype: float8_e8m0fnu for microscaling.
        x2_scale_dtype: as `x1_scale_dtype`.
        comm_mode: the engine of the card's communication; the result is the same.

    Returns:
        y, (m * world_size, n); the gathered x1, (m * world_size, k), or an empty tensor; and an empty
        tensor for the largest value.
    """
    group = _group.find(arguments["hcom"])
    gathered = group.all_gather(arguments["self"].view(_bytes(arguments["self"])))
    gathered = gathered.view(arguments["self"].dtype)
    scales = quant.gathered_scale(group, arguments)
    y = quant.scaled_product(arguments, gathered, scales, inside=True)
    y = y.to(quant.result_dtype(arguments))
    kept = gathered if arguments["gather_output"] else gathered.new_empty(0)
    return y, kept, y.new_empty(0, dtype=torch.float32)


def _bytes(x):
    """The type in which a tensor travels: 8-bit floats as bytes."""
    return torch.uint8 if x.element_size() == 1 and x.is_floating_point() else x.dtype


@npu_all_gather_quant_mm.check
def _(**arguments):
    must.unset("gather_index", arguments["gather_index"], 0)
    quant.check(arguments)


@npu_all_gather_quant_mm.meta
def _(**arguments):
    x1, size = arguments["self"], arguments["world_size"]
    columns = _mx.shape(arguments["x2"], arguments["x2_dtype"])[1]
    y = x1.new_empty((x1.shape[0] * size, columns), dtype=quant.result_dtype(arguments))
    kept = (x1.shape[0] * size, x1.shape[1]) if arguments["gather_output"] else (0,)
    return y, x1.new_empty(kept), x1.new_empty(0, dtype=torch.float32)


npu_all_gather_quant_mm.samples = [
    Sample(lambda make: (make(3, 64).half(), make(64, 8).half(), "softnpu%mirror_2", 2)),
    Sample(
        lambda make: (
            make(2, 64, dtype=torch.int8, low=-9, high=9),
            make(64, 8, dtype=torch.int8, low=-9, high=9),
            "softnpu%mirror_2",
            2,
        ),
        lambda make: {
            "x1_scale": make(2, 1),
            "x2_scale": make(1, 8),
            "y_dtype": 15,
            "gather_output": False,
            "comm_mode": "aiv",
        },
    ),
]
