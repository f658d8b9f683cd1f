"""npu_matmul_all_to_all: a product, then columns exchanged for rows."""

from __future__ import annotations

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._gemm import product
from torch_npu.ops.comm import _group
from torch_npu.ops.comm._all_to_all import check, columns_to_rows


@npu_op(
    "npu_matmul_all_to_all(Tensor x1, Tensor x2, str hcom, int world_size, Tensor? bias=None,"
    " int[]? all2all_axes=None, str? comm_mode=None) -> Tensor",
    ge="MatmulAlltoAll",
    product=True,
)
def npu_matmul_all_to_all(x1, x2, hcom, bias):
    r"""Multiplies and exchanges columns for rows over the ranks of a group.

    $$ y = \mathrm{alltoall}(x_1 x_2 + b) \in R^{R M \times N / R} $$

    where R is the number of ranks: each rank keeps its part of the columns, with the rows of all.

    Args:
        x1: (M, K); float16 or bfloat16.
        x2: (K, N), N a multiple of the ranks, of the dtype of `x1`; may be a transposed view.
        hcom: the name of the group.
        world_size: R: 2, 4, 8 or 16.
        bias: b, (N,), float16 for float16 and float32 for bfloat16 operands.
        all2all_axes: None or [-1, -2].
        comm_mode: the engine of the card's communication; the result is the same.

    Returns:
        y, (R M, N / R), of the dtype of `x1`.

    Constraints:
        K is at most 65535.
    """
    y = product(x1, x2)
    y = (y if bias is None else y + bias.to(y.dtype)).to(x1.dtype)
    return columns_to_rows(_group.find(hcom), y)


@npu_matmul_all_to_all.check
def _(x1, x2, hcom, world_size, bias, all2all_axes, comm_mode):
    must.ndim("x1", x1, 2)
    check(x1, x2, hcom, world_size, bias, all2all_axes, comm_mode, x1.shape[1], [-1, -2])
    shape = tuple(x2.shape)
    must.hold(shape[1] % world_size == 0, "x2", f"of columns divisible by {world_size}", shape)


@npu_matmul_all_to_all.meta
def _(x1, x2, world_size):
    return x1.new_empty((x1.shape[0] * world_size, x2.shape[1] // world_size))


npu_matmul_all_to_all.samples = [
    Sample(
        lambda make: (make(3, 16).half(), make(16, 8).half(), "softnpu%mirror_2", 2),
        lambda make: {"bias": make(8).half()},
    ),
    Sample(
        lambda make: (make(3, 16).bfloat16(), make(8, 16).bfloat16().t(), "softnpu%mirror_4", 4),
        {"all2all_axes": [-1, -2]},
    ),
]
