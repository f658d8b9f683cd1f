"""npu_moe_distribute_combine_v2: the experts' results come back and are summed, special experts' added."""

from __future__ import annotations

import math

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _moe
from torch_npu.ops.comm import _moe_rules as rules


@npu_op(
    "npu_moe_distribute_combine_v2(Tensor expand_x, Tensor expert_ids, Tensor assist_info_for_combine, "
    "Tensor ep_send_counts, Tensor expert_scales, str group_ep, int ep_world_size, int ep_rank_id, "
    "int moe_expert_num, *, Tensor? tp_send_counts=None, Tensor? x_active_mask=None, "
    "Tensor? expand_scales=None, Tensor? shared_expert_x=None, Tensor? elastic_info=None, Tensor? ori_x=None, "
    "Tensor? const_expert_alpha_1=None, Tensor? const_expert_alpha_2=None, Tensor? const_expert_v=None, "
    'Tensor? performance_info=None, str group_tp="", int tp_world_size=0, int tp_rank_id=0, '
    "int expert_shard_type=0, int shared_expert_num=1, int shared_expert_rank_num=0, int global_bs=0, "
    'int comm_quant_mode=0, str comm_alg="", int zero_expert_num=0, int copy_expert_num=0, '
    "int const_expert_num=0) -> Tensor",
    chips=("A2", "A3", "A5"),
)
def npu_moe_distribute_combine_v2(
    expand_x,
    expert_ids,
    assist_info_for_combine,
    ep_send_counts,
    expert_scales,
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
    performance_info,
    shared_expert_num,
    shared_expert_rank_num,
    global_bs,
    comm_quant_mode,
    zero_expert_num,
    copy_expert_num,
    const_expert_num,
):
    r"""Brings the experts' results back to the tokens' ranks and adds them up, in fp32.

    $$ y_t = \sum_k w_{tk}\, e_{tk} + \sum_{\text{shared}} \mathrm{alltoallv}(x)_t + s_t $$

    where e is alltoallv(x) for a routed expert, 0 for a zero expert, the token o for a copy expert and
    $\alpha_1 o + \alpha_2 v$ for a constant one.

    Args:
        expand_x: (A, H), float16 or bfloat16: the results, in the order in which dispatch gave the tokens.
        expert_ids: (BS, K), int32, as given to dispatch.
        assist_info_for_combine: (A * 128,), int32, from dispatch.
        ep_send_counts: int32, ep_recv_counts from dispatch.
        expert_scales: w, (BS, K), float32.
        group_ep: the name of the group of expert parallelism.
        ep_world_size: its ranks: 2 to 8, 16, 32, 64, 128 or 256 on Atlas A2, 2 to 768 on A3.
        ep_rank_id: this rank's number in it.
        moe_expert_num: routed experts.
        tp_send_counts: tp_recv_counts from dispatch; of no meaning.
        x_active_mask: as given to dispatch.
        expand_scales: from dispatch; on Atlas A2 and for "hierarchy".
        shared_expert_x: s, (BS, H) or (a, b, H) with a * b = BS: added to the sum; Atlas A3 only.
        elastic_info: reserved.
        ori_x: o, (BS, H), for copy and constant experts.
        const_expert_alpha_1: (const_expert_num, H); Atlas A3 only, like the next two.
        const_expert_alpha_2: (const_expert_num, H).
        const_expert_v: v, (const_expert_num, H).
        performance_info: int64, (ep_world_size,): microseconds of waiting are added.
        group_tp: reserved.
        tp_world_size: 0 or 1.
        tp_rank_id: 0.
        expert_shard_type: 0: shared experts are on the first ranks.
        shared_expert_num: 0 to 4 on Atlas A3.
        shared_expert_rank_num: ranks of shared experts; Atlas A3 only.
        global_bs: as given to dispatch.
        comm_quant_mode: 0, or 2: results travel as int8 with a scale for each 8 elements; on Atlas A2 with "hierarchy" only.
        comm_alg: "", "fullmesh" or "hierarchy" on Atlas A2, "" or "hierarchy" on A3, "" or "ccu" on Ascend950.
        zero_expert_num: experts that give 0.
        copy_expert_num: experts that give the token itself.
        const_expert_num: experts that give a combination of the token and a constant; Atlas A3 only.

    Returns:
        y of shape (BS, H), of the dtype of expand_x; zero for tokens that do not take part.

    Differs from upstream: expand_scales may be left out on Atlas A2, since the weights are applied where the
    tokens are.
    """
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    total = _moe.combine_by_info(
        where, expand_x, assist_info_for_combine, ep_send_counts, expert_scales, group_ep,
        comm_quant_mode, performance_info,
    )  # fmt: skip
    total = _moe.special(
        where, total, expert_ids, expert_scales, x_active_mask, ori_x, const_expert_alpha_1,
        const_expert_alpha_2, const_expert_v, zero_expert_num, copy_expert_num, const_expert_num,
    )  # fmt: skip
    if shared_expert_x is not None:
        total = total + shared_expert_x.reshape(total.shape).float()
    return total.to(expand_x.dtype)


@npu_moe_distribute_combine_v2.check
def _(
    expand_x,
    expert_ids,
    assist_info_for_combine,
    ep_send_counts,
    expert_scales,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    tp_send_counts,
    x_active_mask,
    expand_scales,
    shared_expert_x,
    elastic_info,
    ori_x,
    const_expert_alpha_1,
    const_expert_alpha_2,
    const_expert_v,
    performance_info,
    group_tp,
    tp_world_size,
    tp_rank_id,
    expert_shard_type,
    shared_expert_num,
    shared_expert_rank_num,
    global_bs,
    comm_quant_mode,
    comm_alg,
    zero_expert_num,
    copy_expert_num,
    const_expert_num,
):
    rules.check_domain(
        expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, group_tp, tp_world_size,
        tp_rank_id, expert_shard_type, shared_expert_num, shared_expert_rank_num, global_bs, 2, comm_alg,
    )  # fmt: skip
    if chips.current().family == "A5":
        must.choice("comm_alg", comm_alg, ("", "ccu"))
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    rules.check_special(
        zero_expert_num, copy_expert_num, const_expert_num, moe_expert_num, comm_alg
    )
    rules.check_combine(expand_x, expert_ids, ep_send_counts, expert_scales, expand_scales, where)
    experts = moe_expert_num + zero_expert_num + copy_expert_num + const_expert_num
    rules.check_sizes("expand_x", expand_x.shape[1], expert_ids, 2, experts, comm_alg, True)
    rules.check_info("assist_info_for_combine", assist_info_for_combine, expand_x)
    rules.check_mask(x_active_mask, expert_ids, comm_alg)
    rules.check_performance(performance_info, ep_world_size, comm_alg)
    rules.check_special_operands(
        expand_x, expert_ids, ori_x, const_expert_alpha_1, const_expert_alpha_2, const_expert_v,
        copy_expert_num, const_expert_num,
    )  # fmt: skip
    must.dtype("tp_send_counts", tp_send_counts, torch.int32)
    quantized = (0, 2) if comm_alg == "hierarchy" or not rules.is_a2() else (0,)
    must.choice("comm_quant_mode", comm_quant_mode, quantized)
    must.unset("elastic_info", elastic_info)
    if shared_expert_x is not None:
        if rules.is_a2():
            must.unset("shared_expert_x", shared_expert_x)
        expected = "left out where ranks have shared experts"
        must.hold(shared_expert_rank_num == 0, "shared_expert_x", expected, "a tensor")
        must.same_dtype("shared_expert_x", shared_expert_x, "expand_x", expand_x)
        must.ndim("shared_expert_x", shared_expert_x, 2, 3)
        rows = (math.prod(shared_expert_x.shape[:-1]), shared_expert_x.shape[-1])
        wanted = (expert_ids.shape[0], expand_x.shape[1])
        must.hold(rows == wanted, "shared_expert_x", f"of BS x H = {wanted}", rows)
    rules.check_ids(expert_ids, experts)


@npu_moe_distribute_combine_v2.meta
def _(expand_x, expert_ids):
    return expand_x.new_empty((expert_ids.shape[0], expand_x.shape[1]))


npu_moe_distribute_combine_v2.samples = [
    Sample(lambda make: (make(16, 32, dtype=torch.bfloat16), *_route(make, 2, 4), make(4, 2),
                         "softnpu%mirror_2", 2, 0, 4)),
    Sample(lambda make: (make(16, 32, dtype=torch.float16), *_route(make, 2, 4), make(4, 2),
                         "softnpu%mirror_2", 2, 0, 4),
           lambda make: {"copy_expert_num": 1, "ori_x": make(4, 32, dtype=torch.float16),
                         "expand_scales": make(16), "comm_alg": "fullmesh"}),
]  # fmt: skip


def _route(make, ranks, tokens):
    """Experts, assist info and counts of tokens that all have experts 0 and 1, on this rank and its mirrors."""
    zero = make(1, dtype=torch.int32, low=0, high=1)
    ids = (zero + torch.arange(2, device=zero.device)).int().expand(tokens, 2).contiguous()
    info = torch.zeros(2, ranks, tokens, _moe.INFO, dtype=torch.int32, device=zero.device)
    info[..., 0] = torch.arange(ranks, device=zero.device).view(1, -1, 1)
    info[..., 1] = torch.arange(tokens, device=zero.device)
    info[..., 2] = torch.arange(2, device=zero.device).view(-1, 1, 1)
    counts = torch.arange(1, 2 * ranks + 1, device=zero.device).int() * tokens
    return ids, info.view(-1), counts
