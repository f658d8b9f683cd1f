"""npu_moe_gating_top_k_softmax_v2: the best experts of each token, normalized over all or over the chosen."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.moe._routing import FLOATS


@npu_op(
    "npu_moe_gating_top_k_softmax_v2(Tensor x, *, int k=1, Tensor? finished=None, int? renorm=0,"
    " bool? output_softmax=False) -> (Tensor, Tensor, Tensor)"
)
def npu_moe_gating_top_k_softmax_v2(x, k, finished, renorm, output_softmax):
    r"""The k best experts of each row and their weights; of equal ones the first.

    $$ y, e = \mathrm{topk}(\mathrm{softmax}(x), k) \quad \text{or} \quad
       v, e = \mathrm{topk}(x, k),\; y = \mathrm{softmax}(v) $$

    Args:
        x: the gate's logits, (rows, experts) or (batch, rows, experts); float16, bfloat16, float32.
        k: how many experts, 1 to the number of experts and to 1024.
        finished: rows that take no part, `x.shape[:-1]` bool: their expert is the number of experts.
        renorm: 0 for the first formula, 1 for the second.
        output_softmax: True returns the softmax, with `renorm` 0.

    Returns:
        The weights, of the dtype of `x`, and the experts, int32, of shape `x.shape[:-1] + (k,)`; and
        the softmax over all experts, float32, or an empty tensor.
    """
    values = wide(x) if renorm else torch.softmax(wide(x), -1)
    best, expert = torch.sort(values, dim=-1, descending=True, stable=True)
    best, expert = best[..., :k], expert[..., :k].to(torch.int32)
    if renorm:
        best = torch.softmax(best, -1)
    if finished is not None:
        expert = torch.where(finished[..., None], x.shape[-1], expert)
    whole = values if output_softmax and not renorm else values.new_empty(0)
    return best.to(x.dtype).contiguous(), expert.contiguous(), whole


@npu_moe_gating_top_k_softmax_v2.check
def _(x, k, finished, renorm):
    must.dtype("x", x, *FLOATS)
    must.ndim("x", x, 2, 3)
    must.dtype("finished", finished, torch.bool)
    must.shape("finished", finished, tuple(x.shape[:-1]))
    most = min(x.shape[-1], 1024)
    must.hold(0 < k <= most, "k", f"within [1, {most}]", k)
    must.choice("renorm", renorm, (None, 0, 1))


npu_moe_gating_top_k_softmax_v2.samples = [
    Sample(
        lambda make: (make(5, 8),),
        lambda make: {"k": 3, "finished": make(5, dtype=torch.bool), "output_softmax": True},
    ),
    Sample(lambda make: (make(2, 3, 8, dtype=torch.float16),), {"k": 2, "renorm": 1}),
]
