"""npu_all_to_all_matmul: rows exchanged for columns, then a product."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._gemm import product
from torch_npu.ops.comm import _group
from torch_npu.ops.comm._all_to_all import check, rows_to_columns


@npu_op(
    "npu_all_to_all_matmul(Tensor x1, Tensor x2, str hcom, int world_size, Tensor? bias=None,"
    " int[]? all2all_axes=None, bool all2all_out_flag=True, str? comm_mode=None)"
    " -> (Tensor, Tensor)",
    ge="AlltoAllMatmul",
    product=True,
)
def npu_all_to_all_matmul(x1, x2, hcom, bias, all2all_out_flag):
    r"""Exchanges rows for columns over the ranks of a group and multiplies.

    $$ p = \mathrm{alltoall}(x_1) \in R^{M / R \times R H}, \quad y = p\, x_2 + b $$

    where R is the number of ranks: each rank keeps its part of the rows, with the columns of all.

    Args:
        x1: (M, H), M a multiple of the ranks; float16 or bfloat16.
        x2: (R H, N), of the dtype of `x1`; may be a transposed view.
        hcom: the name of the group.
        world_size: R: 2, 4, 8 or 16.
        bias: b, (N,), float16 for float16 and float32 for bfloat16 operands.
        all2all_axes: None or [-2, -1].
        all2all_out_flag: whether p is returned.
        comm_mode: the engine of the card's communication; the result is the same.

    Returns:
        y, (M / R, N), and p, (M / R, R H), or an empty tensor; of the dtype of `x1`.

    Constraints:
        R H is at most 65535.
    """
    exchanged = rows_to_columns(_group.find(hcom), x1)
    y = product(exchanged, x2)
    y = (y if bias is None else y + bias.to(y.dtype)).to(x1.dtype)
    return y, exchanged if all2all_out_flag else x1.new_empty(0)


@npu_all_to_all_matmul.check
def _(x1, x2, hcom, world_size, bias, all2all_axes, comm_mode):
    must.ndim("x1", x1, 2)
    depth = x1.shape[1] * world_size
    check(x1, x2, hcom, world_size, bias, all2all_axes, comm_mode, depth, [-2, -1])
    rows = tuple(x1.shape)
    must.hold(rows[0] % world_size == 0, "x1", f"of rows divisible by {world_size}", rows)


@npu_all_to_all_matmul.meta
def _(x1, x2, world_size, all2all_out_flag):
    rows, width = x1.shape[0] // world_size, x1.shape[1] * world_size
    exchanged = (rows, width) if all2all_out_flag else (0,)
    return x1.new_empty((rows, x2.shape[1])), x1.new_empty(exchanged)


npu_all_to_all_matmul.samples = [
    Sample(
        lambda make: (make(4, 16).half(), make(32, 8).half(), "softnpu%mirror_2", 2),
        lambda make: {"bias": make(8).half()},
    ),
    Sample(
        lambda make: (make(4, 16).bfloat16(), make(8, 64).bfloat16().t(), "softnpu%mirror_4", 4),
        {"all2all_out_flag": False, "all2all_axes": [-2, -1]},
    ),
]
