"""npu_moe_distribute_dispatch_v2: tokens go to the ranks of their experts, masked and special ones stay."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _moe
from torch_npu.ops.comm import _moe_rules as rules


@npu_op(
    "npu_moe_distribute_dispatch_v2(Tensor x, Tensor expert_ids, str group_ep, int ep_world_size, "
    "int ep_rank_id, int moe_expert_num, *, Tensor? scales=None, Tensor? x_active_mask=None, "
    "Tensor? expert_scales=None, Tensor? elastic_info=None, Tensor? performance_info=None, "
    'str group_tp="", int tp_world_size=0, int tp_rank_id=0, int expert_shard_type=0, '
    "int shared_expert_num=1, int shared_expert_rank_num=0, int quant_mode=0, int global_bs=0, "
    'int expert_token_nums_type=1, str comm_alg="", int zero_expert_num=0, int copy_expert_num=0, '
    "int const_expert_num=0, int? y_dtype=None, int? x_dtype=None, int? scales_dtype=None) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    chips=("A2", "A3", "A5"),
)
def npu_moe_distribute_dispatch_v2(
    x,
    expert_ids,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    scales,
    x_active_mask,
    expert_scales,
    performance_info,
    tp_world_size,
    shared_expert_num,
    shared_expert_rank_num,
    quant_mode,
    global_bs,
    expert_token_nums_type,
):
    r"""Sends each token to the ranks of its K experts, quantized on the way if asked for.

    $$ y = \mathrm{alltoallv}(x) \qquad \text{or} \qquad
       y = \mathrm{alltoallv}(\mathrm{int8}(x s \cdot 127 / \max|x s|)), \quad
       d = \mathrm{alltoallv}(\max|x s| / 127) $$

    Rows arrive ordered by local expert, then by the rank they came from, then by token. Expert numbers from
    moe_expert_num on are zero, copy and constant experts, in this order: combine computes them, nothing is sent.

    Args:
        x: (BS, H), float16 or bfloat16; on Atlas A2 also int32, 8 int4 values each, moved as they are.
        expert_ids: (BS, K), int32, different experts in each row.
        group_ep: the name of the group of expert parallelism.
        ep_world_size: its ranks: 2 to 8, 16, 32, 64, 128 or 256 on Atlas A2, 2 to 768 on A3.
        ep_rank_id: this rank's number in it.
        moe_expert_num: routed experts, a multiple of ep_world_size - shared_expert_rank_num, up to 1024.
        scales: s, float32, (experts, H), shared experts first, with quant_mode 2; (BS,) with int32 tokens.
        x_active_mask: bool, (BS,) with the true ones first: tokens that take part; or (BS, K): which experts.
        expert_scales: (BS, K), float32; sent along.
        elastic_info: reserved.
        performance_info: int64, (ep_world_size,): microseconds of waiting are added.
        group_tp: reserved.
        tp_world_size: 0 or 1.
        tp_rank_id: 0.
        expert_shard_type: 0: shared experts are on the first ranks.
        shared_expert_num: 0 to 4 on Atlas A3.
        shared_expert_rank_num: ranks of shared experts, a multiple of shared_expert_num; Atlas A3 only.
        quant_mode: 0, or 2: int8 with a factor a token.
        global_bs: 0, or the largest BS of a rank times ep_world_size.
        expert_token_nums_type: 1: tokens of each local expert; 0: their prefix sums.
        comm_alg: "", "fullmesh" or "hierarchy" on Atlas A2; "", "fullmesh_v1", "fullmesh_v2" or "hierarchy" on A3,
            "ccu" instead of the last on Ascend950.
        zero_expert_num: experts that give 0.
        copy_expert_num: experts that give the token itself.
        const_expert_num: experts that give a combination of the token and a constant; Atlas A3 only.
        y_dtype: reserved on these chips.
        x_dtype: reserved on these chips.
        scales_dtype: reserved on these chips.

    Returns:
        expand_x (A, H), whose first rows are those that arrived; dynamic_scales d (A,), float32, zero unless
        quantized; assist_info_for_combine (A * 128,), int32: origin, token and slot of each row;
        expert_token_nums, int64, one a local expert; ep_recv_counts, int32: prefix sums of the rows by local
        expert and rank; tp_recv_counts, of no meaning; expand_scales, expert_scales as they arrived.

    Differs from upstream: rows of expand_x and dynamic_scales beyond those that arrived are zero.
    """
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    got = _moe.dispatch(
        where, x, expert_ids, group_ep, scales, x_active_mask, expert_scales, quant_mode,
        performance_info,
    )  # fmt: skip
    info = x.new_zeros(where.capacity, _moe.INFO, dtype=torch.int32)
    info[: got.info.shape[0], :3] = got.info
    info = _moe.padded(info.view(-1), max(info.numel(), expert_ids.numel()))
    return _moe.outputs(where, got, expert_scales, tp_world_size, expert_token_nums_type, info, 2)


@npu_moe_distribute_dispatch_v2.check
def _(
    x,
    expert_ids,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    scales,
    x_active_mask,
    expert_scales,
    elastic_info,
    performance_info,
    group_tp,
    tp_world_size,
    tp_rank_id,
    expert_shard_type,
    shared_expert_num,
    shared_expert_rank_num,
    quant_mode,
    global_bs,
    expert_token_nums_type,
    comm_alg,
    zero_expert_num,
    copy_expert_num,
    const_expert_num,
    y_dtype,
    x_dtype,
    scales_dtype,
):
    rules.check_domain(
        expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, group_tp, tp_world_size,
        tp_rank_id, expert_shard_type, shared_expert_num, shared_expert_rank_num, global_bs, 2, comm_alg,
    )  # fmt: skip
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    rules.check_special(
        zero_expert_num, copy_expert_num, const_expert_num, moe_expert_num, comm_alg
    )
    rules.check_dispatch(x, expert_ids, scales, expert_scales, quant_mode, where, comm_alg)
    experts = moe_expert_num + zero_expert_num + copy_expert_num + const_expert_num
    rules.check_sizes("x", x.shape[1], expert_ids, 2, experts, comm_alg)
    rules.check_mask(x_active_mask, expert_ids, comm_alg)
    rules.check_performance(performance_info, ep_world_size, comm_alg)
    must.choice("expert_token_nums_type", expert_token_nums_type, (0, 1))
    must.unset("elastic_info", elastic_info)
    must.unset("y_dtype", y_dtype)
    must.unset("x_dtype", x_dtype)
    must.unset("scales_dtype", scales_dtype)
    rules.check_ids(expert_ids, experts)


@npu_moe_distribute_dispatch_v2.meta
def _(
    x,
    expert_ids,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    expert_scales,
    tp_world_size,
    shared_expert_num,
    shared_expert_rank_num,
    quant_mode,
    global_bs,
):
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    dtype = torch.int8 if quant_mode == 2 else x.dtype
    size = max(where.capacity * _moe.INFO, expert_ids.numel())
    return _moe.outputs_meta(where, x, dtype, expert_scales, tp_world_size, size, 2)


npu_moe_distribute_dispatch_v2.samples = [
    Sample(lambda make: (make(3, 32, dtype=torch.bfloat16), _ids(make), "softnpu%mirror_2", 2, 0, 8)),
    Sample(lambda make: (make(3, 32, dtype=torch.float16), _ids(make), "softnpu%mirror_4", 4, 0, 8),
           lambda make: {"quant_mode": 2, "scales": make(8, 32, low=0.5, high=2), "global_bs": 16,
                         "expert_token_nums_type": 0, "expert_scales": make(3, 2), "comm_alg": "fullmesh"}),
    Sample(lambda make: (make(3, 32, dtype=torch.float16), _ids(make), "softnpu%mirror_2", 2, 0, 4),
           lambda make: {"zero_expert_num": 2, "copy_expert_num": 2,
                         "x_active_mask": make(3, 2, dtype=torch.bool)}),
]  # fmt: skip


def _ids(make):
    """Three tokens and their two experts."""
    first = make(3, 1, dtype=torch.int32, low=0, high=4)
    return torch.cat([first, first + 4], 1)
