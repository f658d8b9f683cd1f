"""npu_moe_gating_top_k_softmax: the K best experts of each token by softmax."""

from __future__ import annotations

import math

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._native import floats
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.moe._routing import FLOATS


@npu_op(
    "npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) "
    "-> (Tensor, Tensor, Tensor)",
    ge="MoeGatingTopKSoftmax",
)
def npu_moe_gating_top_k_softmax(x, finished, k):
    r"""Softmax over the experts, then the k largest of each row; of equal ones the first.

    $$ y, expert\_idx = \mathrm{topk}(\mathrm{softmax}(x), k), \qquad
       row\_idx_{r,j} = j \cdot rows + r $$

    Args:
        x: the gate's logits, (rows, experts) or (batch, rows, experts); float16, bfloat16, float32.
        finished: rows that take no part, `x.shape[:-1]`, bool: their expert index is the number of
            experts, which is no expert.
        k: how many experts to choose, 1 to the number of experts and to 1024.

    Returns:
        The weights (dtype of `x`), the experts and the row indices (int32), each of shape
        `x.shape[:-1] + (k,)`.
        `row_idx` numbers the chosen pairs column by column, as `npu_moe_init_routing` wants them.
    """
    weights = torch.softmax(wide(x), dim=-1)
    y, expert = torch.sort(weights, dim=-1, descending=True, stable=True)
    y, expert = y[..., :k].to(x.dtype).contiguous(), expert[..., :k].to(torch.int32)
    if finished is not None:
        expert = torch.where(finished.unsqueeze(-1), x.size(-1), expert)
    rows = math.prod(x.shape[:-1])
    row = torch.arange(rows * k, dtype=torch.int32, device=x.device).reshape(k, rows).t()
    return y, expert.contiguous(), row.reshape(*x.shape[:-1], k).contiguous()


@npu_moe_gating_top_k_softmax.check
def _(x, finished, k):
    must.dtype("x", x, *FLOATS)
    must.ndim("x", x, 2, 3)
    must.dtype("finished", finished, torch.bool)
    must.shape("finished", finished, tuple(x.shape[:-1]))
    must.hold(0 < k <= min(x.size(-1), 1024), "k", f"within [1, {min(x.size(-1), 1024)}]", k)


@npu_moe_gating_top_k_softmax.native
def _(x, finished, k):
    if not floats(x):
        return NotImplemented
    weights = torch.softmax(wide(x), dim=-1)
    chosen = torch.ops.softnpu.top_k_rows(weights, k)
    y, expert = weights.gather(-1, chosen).to(x.dtype), chosen.to(torch.int32)
    if finished is not None:
        expert = torch.where(finished.unsqueeze(-1), x.size(-1), expert)
    rows = math.prod(x.shape[:-1])
    row = torch.arange(rows * k, dtype=torch.int32, device=x.device).view(k, rows).t()
    return y, expert, row.reshape(*x.shape[:-1], k).contiguous()


@npu_moe_gating_top_k_softmax.backward
def _(*grads):
    raise NotImplementedError(
        "derivative for 'npu::npu_moe_gating_top_k_softmax' is not implemented"
    )


npu_moe_gating_top_k_softmax.samples = [
    Sample(lambda make: (make(5, 8),), {"k": 3}),
    Sample(lambda make: (make(4, 16, dtype=torch.float16), make(4, dtype=torch.bool)), {"k": 2}),
    Sample(lambda make: (make(2, 3, 8), make(2, 3, dtype=torch.bool), 4), name="3 dimensions"),
]
