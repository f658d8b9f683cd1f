"""npu_moe_distribute_combine_setup: says where the experts' results go back to; teardown sums them up."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _moe
from torch_npu.ops.comm import _moe_halves as halves
from torch_npu.ops.comm._moe_rules import check_info


@npu_op(
    "npu_moe_distribute_combine_setup(Tensor expand_x, Tensor expert_ids, Tensor assist_info_for_combine, "
    "str group_ep, int ep_world_size, int ep_rank_id, int moe_expert_num, *, int expert_shard_type=0, "
    "int shared_expert_num=1, int shared_expert_rank_num=0, int global_bs=0, int comm_quant_mode=0, "
    'int comm_type=0, str comm_alg="") -> (Tensor, Tensor)',
    chips=("A5",),
)
def npu_moe_distribute_combine_setup(
    expand_x,
    expert_ids,
    assist_info_for_combine,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    shared_expert_num,
    shared_expert_rank_num,
    global_bs,
):
    r"""Sends the experts' results back to the ranks of their tokens; npu_moe_distribute_combine_teardown receives them.

    Args:
        expand_x: (A, H), float16 or bfloat16: the results, in the order of npu_moe_distribute_dispatch_teardown.
        expert_ids: (BS, K), int32, as at dispatch.
        assist_info_for_combine: (A * 128,), int32: the third result of npu_moe_distribute_dispatch_teardown.
        group_ep: the name of the group of expert parallelism.
        ep_world_size: its ranks, 2, 4 or 8.
        ep_rank_id: this rank's number in it.
        moe_expert_num: 32.
        expert_shard_type: 0.
        shared_expert_num: 0.
        shared_expert_rank_num: 0.
        global_bs: as at dispatch.
        comm_quant_mode: 0.
        comm_type: 2 (URMA).
        comm_alg: "".

    Returns:
        quant_expand_x (A, message), int8, for communication that is quantized: zeros; comm_cmd_info, int32,
        ((A + ep_world_size) * 16,): the commands for the teardown.

    Constraints:
        BS 8, 16 or 256, H 4096 or 7168, K 6 or 8.

    Differs from upstream: rows travel when the teardown is called, which reads expand_x; so it must not be
    overwritten before. The commands are of our own form.
    """
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    counts = _moe.arrival_counts(where, assist_info_for_combine)  # (local expert, rank)
    cells = torch.arange(counts.numel())
    rank = (cells % where.ranks).repeat_interleave(counts.reshape(-1))
    expert = (cells // where.ranks).repeat_interleave(counts.reshape(-1))
    rows = expand_x.shape[0]
    info = halves.commands(rows, rank, expert, counts.sum(0))
    size = halves.result_size(expand_x.shape[1])
    return expand_x.new_zeros((rows, size), dtype=torch.int8), info


@npu_moe_distribute_combine_setup.check
def _(
    expand_x,
    expert_ids,
    assist_info_for_combine,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    expert_shard_type,
    shared_expert_num,
    shared_expert_rank_num,
    global_bs,
    comm_quant_mode,
    comm_type,
    comm_alg,
):
    halves.check(
        expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, expert_shard_type,
        shared_expert_num, shared_expert_rank_num, global_bs, comm_type, comm_alg,
    )  # fmt: skip
    where = _moe.layout(expert_ids, ep_world_size, ep_rank_id, moe_expert_num, 0, 0, global_bs)
    halves.check_combine(
        expand_x, expert_ids, where, ep_world_size, moe_expert_num, shared_expert_num, comm_quant_mode
    )  # fmt: skip
    check_info("assist_info_for_combine", assist_info_for_combine, expand_x)
    if must.has_data(assist_info_for_combine):
        counts = _moe.arrival_counts(where, assist_info_for_combine)
        ok = int(counts.min()) >= 0 and int(counts.sum()) <= expand_x.shape[0]
        expected = f"growing prefix sums up to A = {expand_x.shape[0]}"
        must.hold(ok, "assist_info_for_combine", expected, counts.reshape(-1).cumsum(0).tolist())


@npu_moe_distribute_combine_setup.meta
def _(expand_x, ep_world_size):
    rows, hidden = expand_x.shape
    size = (rows + ep_world_size) * halves.WORDS
    return (
        expand_x.new_empty((rows, halves.result_size(hidden)), dtype=torch.int8),
        expand_x.new_empty(size, dtype=torch.int32),
    )


def route(make):
    """Eight tokens that all have experts 0 to 5, on this rank and its mirror: experts and assist info."""
    zero = make(1, dtype=torch.int32, low=0, high=1)
    ids = (zero + torch.arange(6, device=zero.device)).int().expand(8, 6).contiguous()
    cells = torch.arange(1, 16 * 2 + 1, device=zero.device).clamp(max=12).int() * 8
    info = zero.new_zeros(96 * _moe.INFO)
    info[: cells.numel()] = cells
    return ids, info


npu_moe_distribute_combine_setup.samples = [
    Sample(lambda make: (make(96, 4096, dtype=torch.bfloat16), *route(make), "softnpu%mirror_2", 2, 0, 32),
           {"comm_type": 2, "shared_expert_num": 0}),
    Sample(lambda make: (make(96, 4096, dtype=torch.float16), *route(make), "softnpu%mirror_2", 2, 0, 32),
           {"comm_type": 2, "shared_expert_num": 0, "global_bs": 16}),
]  # fmt: skip
