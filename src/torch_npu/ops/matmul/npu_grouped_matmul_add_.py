"""npu_grouped_matmul_add_ and npu_grouped_matmul_add: products of groups of depths, added to float32 matrices."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._sharding import Sharding
from torch_npu.ops.matmul import _groups

_REST = (
    "Tensor x, Tensor weight, Tensor group_list, *, bool transpose_x=True, "
    "bool transpose_weight=False, int group_type=2, int? group_list_type=0)"
)


@npu_op(
    f"npu_grouped_matmul_add_(Tensor(a!) self, {_REST} -> Tensor(a!)",
    functional=f"npu_grouped_matmul_add(Tensor self, {_REST} -> Tensor",
    product=True,
)
def npu_grouped_matmul_add_(self, x, weight, group_list, group_list_type):
    r"""Adds to each group's matrix the product over its depths, as the gradients of experts' weights do.

    $$ self_g \leftarrow self_g + \sum_{k \in group_g} x_k^T\, weight_k $$

    Args:
        self: (G, M, N), float32; written. But on Ascend950 any shape of as many elements.
        x: (K, M); float16 or bfloat16.
        weight: (K, N), the dtype of `x`.
        group_list: (G) int64: where each group of depths ends, or how many it has.
        transpose_x: True.
        transpose_weight: False.
        group_type: 2.
        group_list_type: 0 ends, 1 sizes.

    Returns:
        `self`.
    """
    matrices = self.view(group_list.shape[0], x.shape[1], weight.shape[1])
    kind, count = group_list_type or 0, group_list.shape[0]
    name = "npu_grouped_matmul_add_"
    for group in _groups.read(
        name, group_list, kind, count, x.shape[0], exact=False, axis="depths of 'x'"
    ):
        part = slice(group.start, group.start + group.size)
        if group.size:
            matrices[group.weight] += torch.matmul(x[part].float().t(), weight[part].float())
    return self


@npu_grouped_matmul_add_.meta
def _(self):
    return self


@npu_grouped_matmul_add_.check
def _(self, x, weight, group_list, transpose_x, transpose_weight, group_type, group_list_type):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2)
    must.same_dtype("weight", weight, "x", x)
    must.shape("weight", weight, (x.shape[0], None))
    must.dtype("group_list", group_list, torch.int64)
    must.ndim("group_list", group_list, 1)
    must.choice("transpose_x", transpose_x, (True,))
    must.choice("transpose_weight", transpose_weight, (False,))
    must.choice("group_type", group_type, (2,))
    must.choice("group_list_type", group_list_type, (None, 0, 1))
    must.dtype("self", self, torch.float32)
    groups, rows, columns = group_list.shape[0], x.shape[1], weight.shape[1]
    if chips.current().family == "A5":
        must.shape("self", self, (groups, rows, columns))
    size = groups * rows * columns
    fits = self.numel() == size
    must.hold(fits, "self", f"of {size} elements", tuple(self.shape), ErrCode.PARAM)
    must.hold(self.is_contiguous(), "self", "contiguous", self.stride(), ErrCode.PARAM)


@npu_grouped_matmul_add_.sharding
def _(self):
    if self.ndim == 3:
        yield Sharding((2,), {"self": 2, "weight": 1})
        yield Sharding((1,), {"self": 1, "x": 1})


npu_grouped_matmul_add_.samples = [
    Sample(
        lambda make: (
            make(2, 4, 6),
            make(9, 4, dtype=torch.float16),
            make(9, 6, dtype=torch.float16),
            make(2, dtype=torch.int64, low=4, high=5),
        ),
        {"group_list_type": 1},
    ),
    Sample(
        lambda make: (
            make(8, 6),
            make(9, 4, dtype=torch.bfloat16),
            make(9, 6, dtype=torch.bfloat16),
            make(2, dtype=torch.int64, low=9, high=10),
        )
    ),
]
