"""npu_moe_distribute_combine: the experts' results come back and are summed."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _moe
from torch_npu.ops.comm import _moe_rules as rules


@npu_op(
    "npu_moe_distribute_combine(Tensor expand_x, Tensor expert_ids, Tensor expand_idx, Tensor ep_send_counts, "
    "Tensor expert_scales, str group_ep, int ep_world_size, int ep_rank_id, int moe_expert_num, *, "
    "Tensor? tp_send_counts=None, Tensor? x_active_mask=None, Tensor? activation_scale=None, "
    "Tensor? weight_scale=None, Tensor? group_list=None, Tensor? expand_scales=None, "
    'Tensor? shared_expert_x=None, str group_tp="", int tp_world_size=0, int tp_rank_id=0, '
    "int expert_shard_type=0, int shared_expert_num=1, int shared_expert_rank_num=0, int global_bs=0, "
    "int out_dtype=0, int comm_quant_mode=0, int group_list_type=0) -> Tensor",
    chips=("A2", "A3", "A5"),
)
def npu_moe_distribute_combine(
    expand_x,
    expert_ids,
    expand_idx,
    ep_send_counts,
    expert_scales,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    shared_expert_num,
    shared_expert_rank_num,
    global_bs,
    comm_quant_mode,
):
    r"""Brings the experts' results back to the tokens' ranks and adds them up, in fp32.

    $$ y_t = \sum_k w_{tk}\, \mathrm{alltoallv}(x)_{tk} + \sum_{\text{shared}} \mathrm{alltoallv}(x)_t $$

    Args:
        expand_x: (A, H), float16 or bfloat16: the results, in the order in which dispatch gave the tokens.
        expert_ids: (BS, K), int32, as given to dispatch.
        expand_idx: (BS * K,), int32, from dispatch.
        ep_send_counts: int32, ep_recv_counts from dispatch.
        expert_scales: w, (BS, K), float32.
        group_ep: the name of the group of expert parallelism.
        ep_world_size: its ranks: 16, 32 or 64 on Atlas A2; 8, 16, 32, 64, 128, 144, 256 or 288 on A3.
        ep_rank_id: this rank's number in it.
        moe_expert_num: routed experts.
        tp_send_counts: tp_recv_counts from dispatch; of no meaning.
        x_active_mask: reserved.
        activation_scale: reserved.
        weight_scale: reserved.
        group_list: reserved.
        expand_scales: from dispatch; required on Atlas A2.
        shared_expert_x: reserved.
        group_tp: reserved.
        tp_world_size: 0 or 1.
        tp_rank_id: 0.
        expert_shard_type: 0: shared experts are on the first ranks.
        shared_expert_num: 1.
        shared_expert_rank_num: ranks of shared experts, Atlas A3 only.
        global_bs: as given to dispatch.
        out_dtype: reserved.
        comm_quant_mode: 0, or 2: results travel as int8 with a scale for each 8 elements.
        group_list_type: reserved.

    Returns:
        y of shape (BS, H), of the dtype of expand_x.

    Differs from upstream: comm_quant_mode 2 needs no environment variable, and expand_scales may be left out on
    Atlas A2, since the weights are applied where the tokens are.
    """
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    total = _moe.combine_by_index(
        where, expand_x, expert_ids, expand_idx, ep_send_counts, expert_scales, group_ep, comm_quant_mode
    )  # fmt: skip
    return total.to(expand_x.dtype)


@npu_moe_distribute_combine.check
def _(
    expand_x,
    expert_ids,
    expand_idx,
    ep_send_counts,
    expert_scales,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    tp_send_counts,
    x_active_mask,
    activation_scale,
    weight_scale,
    group_list,
    expand_scales,
    shared_expert_x,
    group_tp,
    tp_world_size,
    tp_rank_id,
    expert_shard_type,
    shared_expert_num,
    shared_expert_rank_num,
    global_bs,
    out_dtype,
    comm_quant_mode,
    group_list_type,
):
    rules.check_domain(
        expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, group_tp, tp_world_size,
        tp_rank_id, expert_shard_type, shared_expert_num, shared_expert_rank_num, global_bs, 1,
    )  # fmt: skip
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    rules.check_combine(expand_x, expert_ids, ep_send_counts, expert_scales, expand_scales, where)
    rules.check_sizes("expand_x", expand_x.shape[1], expert_ids, 1, moe_expert_num, "", True)
    must.dtype("expand_idx", expand_idx, torch.int32)
    must.shape("expand_idx", expand_idx, (expert_ids.numel(),))
    must.dtype("tp_send_counts", tp_send_counts, torch.int32)
    must.choice("comm_quant_mode", comm_quant_mode, (0, 2))
    must.unset("x_active_mask", x_active_mask)
    must.unset("activation_scale", activation_scale)
    must.unset("weight_scale", weight_scale)
    must.unset("group_list", group_list)
    must.unset("shared_expert_x", shared_expert_x)
    must.unset("out_dtype", out_dtype, 0)
    must.unset("group_list_type", group_list_type, 0)
    rules.check_ids(expert_ids, moe_expert_num)


@npu_moe_distribute_combine.meta
def _(expand_x, expert_ids):
    return expand_x.new_empty((expert_ids.shape[0], expand_x.shape[1]))


npu_moe_distribute_combine.samples = [
    Sample(lambda make: (make(128, 32, dtype=torch.bfloat16), *_route(make), make(4, 8),
                         "softnpu%mirror_16", 16, 0, 32)),
    Sample(lambda make: (make(128, 32, dtype=torch.float16), *_route(make), make(4, 8),
                         "softnpu%mirror_16", 16, 0, 32),
           lambda make: {"comm_quant_mode": 2, "expand_scales": make(128)}),
]  # fmt: skip


def _route(make):
    """Experts, index and counts of four tokens that have each of the 32 experts once, on all 16 ranks."""
    zero = make(32, dtype=torch.int32, low=0, high=1)
    number = torch.arange(32, device=zero.device).int()
    return number.view(4, 8), zero, number + 1
