"""npu_moe_distribute_combine_add_rms_norm: combine, then add and normalize."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _moe
from torch_npu.ops.comm import _moe_rules as rules
from torch_npu.ops.comm.npu_moe_distribute_combine_v2 import _route


@npu_op(
    "npu_moe_distribute_combine_add_rms_norm(Tensor expand_x, Tensor expert_ids, Tensor expand_idx, "
    "Tensor ep_send_counts, Tensor expert_scales, Tensor residual_x, Tensor gamma, str group_ep, "
    "int ep_world_size, int ep_rank_id, int moe_expert_num, *, Tensor? tp_send_counts=None, "
    "Tensor? x_active_mask=None, Tensor? activation_scale=None, Tensor? weight_scale=None, "
    "Tensor? group_list=None, Tensor? expand_scales=None, Tensor? shared_expert_x=None, "
    "Tensor? elastic_info=None, Tensor? ori_x=None, Tensor? const_expert_alpha_1=None, "
    'Tensor? const_expert_alpha_2=None, Tensor? const_expert_v=None, str group_tp="", int tp_world_size=0, '
    "int tp_rank_id=0, int expert_shard_type=0, int shared_expert_num=1, int shared_expert_rank_num=0, "
    'int global_bs=0, int out_dtype=0, int comm_quant_mode=0, int group_list_type=0, str comm_alg="", '
    "float norm_eps=1e-06, int zero_expert_num=0, int copy_expert_num=0, int const_expert_num=0) "
    "-> (Tensor, Tensor, Tensor)"
)
def npu_moe_distribute_combine_add_rms_norm(
    expand_x,
    expert_ids,
    expand_idx,
    ep_send_counts,
    expert_scales,
    residual_x,
    gamma,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    x_active_mask,
    shared_expert_x,
    ori_x,
    const_expert_alpha_1,
    const_expert_alpha_2,
    const_expert_v,
    global_bs,
    norm_eps,
    zero_expert_num,
    copy_expert_num,
    const_expert_num,
):
    r"""Combines as npu_moe_distribute_combine_v2 does, adds the residual and normalizes.

    $$ x = \mathrm{combine} + r, \quad y = \frac{x}{\sqrt{\mathrm{mean}(x^2) + \epsilon}} \gamma $$

    Args:
        expand_x: (A, H), bfloat16: the experts' results, in the order in which dispatch_v2 gave the tokens.
        expert_ids: (BS, K), int32, as given to dispatch_v2.
        expand_idx: (A * 128,), int32, the assist info of dispatch_v2.
        ep_send_counts: int32, ep_recv_counts from dispatch_v2.
        expert_scales: (BS, K), float32.
        residual_x: r, (BS, 1, H), bfloat16.
        gamma: (H,), bfloat16.
        group_ep: the name of the group of expert parallelism.
        ep_world_size: its ranks.
        ep_rank_id: this rank's number in it.
        moe_expert_num: routed experts, a multiple of ep_world_size, up to 1024.
        tp_send_counts: tp_recv_counts from dispatch_v2; of no meaning.
        x_active_mask: as given to dispatch_v2.
        activation_scale: reserved.
        weight_scale: reserved.
        group_list: reserved.
        expand_scales: from dispatch_v2; Atlas A2 only.
        shared_expert_x: (BS, H), added to the sum.
        elastic_info: reserved.
        ori_x: (BS, H), for copy and constant experts.
        const_expert_alpha_1: (const_expert_num, H).
        const_expert_alpha_2: (const_expert_num, H).
        const_expert_v: (const_expert_num, H).
        group_tp: reserved.
        tp_world_size: 0 or 1.
        tp_rank_id: 0.
        expert_shard_type: 0.
        shared_expert_num: 0 or 1; there are no ranks of shared experts.
        shared_expert_rank_num: 0.
        global_bs: as given to dispatch_v2.
        out_dtype: reserved.
        comm_quant_mode: reserved.
        group_list_type: reserved.
        comm_alg: reserved.
        norm_eps: epsilon.
        zero_expert_num: experts that give 0.
        copy_expert_num: experts that give the token itself.
        const_expert_num: experts that give a combination of the token and a constant.

    Returns:
        y (BS, 1, H), 1 / rms (BS, 1, 1) in float32, and x (BS, 1, H).

    Differs from upstream: accepted on every chip, with the sizes that the chip's combine_v2 has.
    """
    where = _moe.layout(expert_ids, ep_world_size, ep_rank_id, moe_expert_num, 1, 0, global_bs)
    total = _moe.combine_by_info(
        where, expand_x, expand_idx, ep_send_counts, expert_scales, group_ep
    )
    total = _moe.special(
        where, total, expert_ids, expert_scales, x_active_mask, ori_x, const_expert_alpha_1,
        const_expert_alpha_2, const_expert_v, zero_expert_num, copy_expert_num, const_expert_num,
    )  # fmt: skip
    if shared_expert_x is not None:
        total = total + shared_expert_x.float()
    x = total.unsqueeze(1) + residual_x.float()
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + norm_eps)
    normed = (
        (x * rstd).to(residual_x.dtype).float()
    )  # rounded before gamma, as in moe_distribute_combine_v2.h
    y = normed * gamma.float()
    return y.to(residual_x.dtype), rstd, x.to(residual_x.dtype)


@npu_moe_distribute_combine_add_rms_norm.check
def _(
    expand_x,
    expert_ids,
    expand_idx,
    ep_send_counts,
    expert_scales,
    residual_x,
    gamma,
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
    elastic_info,
    ori_x,
    const_expert_alpha_1,
    const_expert_alpha_2,
    const_expert_v,
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
    comm_alg,
    norm_eps,
    zero_expert_num,
    copy_expert_num,
    const_expert_num,
):
    must.choice("shared_expert_num", shared_expert_num, (0, 1))
    must.unset("shared_expert_rank_num", shared_expert_rank_num, 0)
    rules.check_domain(
        expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, group_tp, tp_world_size,
        tp_rank_id, expert_shard_type, shared_expert_num, shared_expert_rank_num, global_bs, 2,
    )  # fmt: skip
    where = _moe.layout(expert_ids, ep_world_size, ep_rank_id, moe_expert_num, 1, 0, global_bs)
    rules.check_special(zero_expert_num, copy_expert_num, const_expert_num, moe_expert_num)
    rules.check_combine(expand_x, expert_ids, ep_send_counts, expert_scales, expand_scales, where)
    must.dtype("expand_x", expand_x, torch.bfloat16)
    experts = moe_expert_num + zero_expert_num + copy_expert_num + const_expert_num
    rules.check_sizes("expand_x", expand_x.shape[1], expert_ids, 2, experts, "", True)
    rules.check_info("expand_idx", expand_idx, expand_x)
    rules.check_mask(x_active_mask, expert_ids)
    rules.check_special_operands(
        expand_x, expert_ids, ori_x, const_expert_alpha_1, const_expert_alpha_2, const_expert_v,
        copy_expert_num, const_expert_num,
    )  # fmt: skip
    tokens, hidden = expert_ids.shape[0], expand_x.shape[1]
    must.dtype("residual_x", residual_x, torch.bfloat16)
    must.shape("residual_x", residual_x, (tokens, 1, hidden))
    must.dtype("gamma", gamma, torch.bfloat16)
    must.shape("gamma", gamma, (hidden,))
    must.same_dtype("shared_expert_x", shared_expert_x, "expand_x", expand_x)
    must.shape("shared_expert_x", shared_expert_x, (tokens, hidden))
    must.dtype("tp_send_counts", tp_send_counts, torch.int32)
    must.unset("activation_scale", activation_scale)
    must.unset("weight_scale", weight_scale)
    must.unset("group_list", group_list)
    must.unset("elastic_info", elastic_info)
    must.unset("out_dtype", out_dtype, 0)
    must.unset("comm_quant_mode", comm_quant_mode, 0)
    must.unset("group_list_type", group_list_type, 0)
    must.unset("comm_alg", comm_alg, "")
    must.hold(norm_eps >= 0, "norm_eps", "not negative", norm_eps)
    rules.check_ids(expert_ids, experts)


@npu_moe_distribute_combine_add_rms_norm.meta
def _(expand_x, expert_ids, residual_x):
    rstd = residual_x.new_empty((expert_ids.shape[0], 1, 1), dtype=torch.float32)
    shape = (expert_ids.shape[0], 1, expand_x.shape[1])
    return residual_x.new_empty(shape), rstd, residual_x.new_empty(shape)


npu_moe_distribute_combine_add_rms_norm.samples = [
    Sample(lambda make: (make(16, 32, dtype=torch.bfloat16), *_route(make, 2, 4), make(4, 2),
                         make(4, 1, 32, dtype=torch.bfloat16), make(32, dtype=torch.bfloat16),
                         "softnpu%mirror_2", 2, 0, 4)),
    Sample(lambda make: (make(16, 32, dtype=torch.bfloat16), *_route(make, 2, 4), make(4, 2),
                         make(4, 1, 32, dtype=torch.bfloat16), make(32, dtype=torch.bfloat16),
                         "softnpu%mirror_2", 2, 0, 4),
           lambda make: {"shared_expert_x": make(4, 32, dtype=torch.bfloat16), "norm_eps": 1e-3}),
]  # fmt: skip
