"""A whole layer of experts with its communication, of `_C_ascend`.

Kernels: vllm-ascend, csrc/mc2/dispatch_ffn_combine, and its forms for bfloat16 and for 4-bit weights.
"""

from __future__ import annotations

import torch

from softnpu.contrib.vllm_ascend._define import ascend_op
from softnpu.contrib.vllm_ascend.gmm import stacked
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops.comm import _group, _moe
from torch_npu.ops.matmul import _experts, _groups

__all__ = ["dispatch_ffn_combine"]


def _products(rows, weight, scale, factor, assist, sizes):
    """Each expert's rows times its weight in fp32; 8-bit and 4-bit weights with their scales."""
    operands = None
    if not weight.is_floating_point():
        operands = _experts.Rows(rows, weight, scale, factor, assist)
    found, start = [], 0
    for expert, size in enumerate(sizes):
        if operands is None:
            found.append(wide(rows[start : start + size]) @ wide(weight[expert]))
        else:
            found.append(operands.product(_groups.Group(expert, start, size)).float())
        start += size
    return torch.cat(found)


@ascend_op(
    "dispatch_ffn_combine(Tensor x, Tensor[] weight1, Tensor[] weight2, Tensor expert_idx, "
    "Tensor[] scale1, Tensor[] scale2, Tensor[] bias1, Tensor[] bias2, Tensor probs, str group, "
    "int max_output_size, Tensor(a!) out, Tensor(b!) expert_token_nums, "
    "Tensor? x_active_mask=None, float swiglu_limit=1000000.0) -> (Tensor(a!), Tensor(b!))",
    product=True,
)
def dispatch_ffn_combine(
    x,
    weight1,
    weight2,
    expert_idx,
    scale1,
    scale2,
    bias1,
    bias2,
    probs,
    group,
    max_output_size,
    out,
    expert_token_nums,
    x_active_mask,
    swiglu_limit,
):
    """out = sum over a token's experts of probs * W2 silu(W1 x)[left] * (W1 x)[right], the experts on all ranks.

    Each rank of the group holds as many experts as it has weights: (k, n) and (n / 2, k) each, or one tensor of all.
    int8 weights, and int4 ones (int32, with the assisting sums in bias1 and bias2), take int8 rows: x and the product of
    the halves are quantized by tokens. The halves are clamped at `swiglu_limit`. A rank computes `max_output_size` rows,
    in the order of its experts, then of the ranks they came from; further ones add nothing. `expert_token_nums` is
    written with the rows that came for each expert.
    """
    first, second = stacked(weight1, 3), stacked(weight2, 3)
    quantized = not first.is_floating_point()
    peers = _group.find(group)
    experts = first.shape[0]
    tokens, slots = expert_idx.shape
    where = _moe.Layout(
        peers.size, peers.rank, experts * peers.size, 0, 0, tokens, slots, tokens * peers.size
    )
    got = _moe.dispatch(
        where, x, expert_idx, group, None, x_active_mask, None, 2 if quantized else 0
    )
    counts = got.counts.sum(1)
    ends = counts.cumsum(0).clamp(max=max_output_size)
    kept = ends.diff(prepend=ends.new_zeros(1)).tolist()
    rows = got.rows[: sum(kept)]
    assist1, assist2 = (stacked(b, 2) if b and b[0].numel() else None for b in (bias1, bias2))
    scales = (stacked(s, 2) if quantized else None for s in (scale1, scale2))
    step1, step2 = scales
    hidden = _products(rows, first, step1, got.scales[: sum(kept)], assist1, kept)
    gate, up = hidden.chunk(2, 1)
    gate, up = gate.clamp(max=swiglu_limit), up.clamp(-swiglu_limit, swiglu_limit)
    hidden = torch.nn.functional.silu(gate) * up
    factor = None
    if quantized:
        hidden, factor = _moe.quantize(hidden)
    else:
        hidden = hidden.to(x.dtype)
    result = _products(hidden, second, step2, factor, assist2, kept).to(out.dtype)
    result = _moe.padded(result, got.rows.shape[0])
    origin, token, slot = got.info.unbind(1)
    order = origin.argsort(stable=True)
    send = torch.bincount(origin, minlength=where.ranks)
    receive = peers.all_to_all(send, [1] * where.ranks, [1] * where.ranks).tolist()
    back = peers.all_to_all(result[order], send.tolist(), receive).float()
    labels = peers.all_to_all(torch.stack((token, slot), 1)[order], send.tolist(), receive)
    out.copy_(_moe.weighted_sum(where, back, labels[:, 0], labels[:, 1], probs))
    expert_token_nums.copy_(counts.view(expert_token_nums.shape))
    return out, expert_token_nums


@dispatch_ffn_combine.meta
def _(out, expert_token_nums):
    return out, expert_token_nums


@dispatch_ffn_combine.check
def _(x, weight1, weight2, expert_idx, scale1, scale2, bias1, bias2, probs, group, **rest):
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2)
    tokens = x.shape[0]
    must.dtype("expert_idx", expert_idx, torch.int32)
    must.shape("expert_idx", expert_idx, (tokens, None))
    must.dtype("probs", probs, torch.float32)
    must.shape("probs", probs, tuple(expert_idx.shape))
    for name, given in (("weight1", weight1), ("weight2", weight2)):
        must.hold(len(given) > 0, name, "not empty", 0)
        must.dtype(name, given[0], torch.int8, torch.int32, torch.float16, torch.bfloat16)
        must.same_dtype(name, given[0], "weight1", weight1[0])
    if not weight1[0].is_floating_point():
        for name, given in (("scale1", scale1), ("scale2", scale2)):
            must.hold(len(given) > 0, name, "given with integer weights", 0)
            must.dtype(name, given[0], torch.int64, torch.float32)
    if weight1[0].dtype == torch.int32:
        for name, given in (("bias1", bias1), ("bias2", bias2)):
            must.hold(len(given) > 0, name, "given with 4-bit weights", 0)
    must.shape("out", rest["out"], tuple(x.shape))
    must.dtype("expert_token_nums", rest["expert_token_nums"], torch.int32)
    must.dtype("x_active_mask", rest["x_active_mask"], torch.bool)
    must.shape("x_active_mask", rest["x_active_mask"], (tokens,))
    must.hold(rest["max_output_size"] > 0, "max_output_size", "positive", rest["max_output_size"])
    must.hold(rest["swiglu_limit"] > 0, "swiglu_limit", "positive", rest["swiglu_limit"])
    _group.check_name("group", group, "group")
