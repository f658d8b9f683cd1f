"""npu_moe_distribute_dispatch: tokens go to the ranks of their experts."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _moe
from torch_npu.ops.comm import _moe_rules as rules


@npu_op(
    "npu_moe_distribute_dispatch(Tensor x, Tensor expert_ids, str group_ep, int ep_world_size, int ep_rank_id, "
    "int moe_expert_num, *, Tensor? scales=None, Tensor? x_active_mask=None, Tensor? expert_scales=None, "
    'str group_tp="", int tp_world_size=0, int tp_rank_id=0, int expert_shard_type=0, int shared_expert_num=1, '
    "int shared_expert_rank_num=0, int quant_mode=0, int global_bs=0, int expert_token_nums_type=1) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    chips=("A2", "A3", "A5"),
)
def npu_moe_distribute_dispatch(
    x,
    expert_ids,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    scales,
    x_active_mask,
    expert_scales,
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

    Rows arrive ordered by local expert, then by the rank they came from, then by token.

    Args:
        x: (BS, H), float16 or bfloat16.
        expert_ids: (BS, K), int32, different experts in each row.
        group_ep: the name of the group of expert parallelism.
        ep_world_size: its ranks: 16, 32 or 64 on Atlas A2; 8, 16, 32, 64, 128, 144, 256 or 288 on A3.
        ep_rank_id: this rank's number in it.
        moe_expert_num: routed experts, a multiple of ep_world_size - shared_expert_rank_num, up to 512.
        scales: s, float32, of shape (experts, H), shared experts first; only with quant_mode 2.
        x_active_mask: reserved.
        expert_scales: (BS, K), float32; sent along (of no meaning after Atlas A2: the card leaves the result unset).
        group_tp: reserved.
        tp_world_size: 0 or 1.
        tp_rank_id: 0.
        expert_shard_type: 0: shared experts are on the first ranks.
        shared_expert_num: 1.
        shared_expert_rank_num: ranks of shared experts, Atlas A3 only.
        quant_mode: 0, or 2: int8 with a factor a token.
        global_bs: 0, or the largest BS of a rank times ep_world_size.
        expert_token_nums_type: 1: tokens of each local expert; 0: their prefix sums.

    Returns:
        expand_x (A, H), whose first rows are those that arrived; dynamic_scales d (A,), float32, zero unless
        quantized; expand_idx (BS * K,), int32: how many tokens before this one went to the same expert;
        expert_token_nums, int64, one a local expert; ep_recv_counts, int32: prefix sums of the rows by local
        expert and rank; tp_recv_counts, of no meaning; expand_scales, expert_scales as they arrived.

    Differs from upstream: rows of expand_x and dynamic_scales beyond those that arrived are zero.
    """
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    got = _moe.dispatch(
        where, x, expert_ids, group_ep, scales, x_active_mask, expert_scales, quant_mode
    )
    flat = expert_ids.reshape(-1).long()
    same = torch.nn.functional.one_hot(flat, moe_expert_num).cumsum(0)
    idx = (same.gather(1, flat.unsqueeze(1)).squeeze(1) - 1).int()
    return _moe.outputs(where, got, expert_scales, tp_world_size, expert_token_nums_type, idx, 1)


@npu_moe_distribute_dispatch.check
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
    group_tp,
    tp_world_size,
    tp_rank_id,
    expert_shard_type,
    shared_expert_num,
    shared_expert_rank_num,
    quant_mode,
    global_bs,
    expert_token_nums_type,
):
    rules.check_domain(
        expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, group_tp, tp_world_size,
        tp_rank_id, expert_shard_type, shared_expert_num, shared_expert_rank_num, global_bs, 1,
    )  # fmt: skip
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    rules.check_dispatch(x, expert_ids, scales, expert_scales, quant_mode, where, version=1)
    rules.check_sizes("x", x.shape[1], expert_ids, 1, moe_expert_num)
    must.unset("x_active_mask", x_active_mask)
    must.choice("expert_token_nums_type", expert_token_nums_type, (0, 1))
    rules.check_ids(expert_ids, moe_expert_num)


@npu_moe_distribute_dispatch.meta
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
    return _moe.outputs_meta(where, x, dtype, expert_scales, tp_world_size, expert_ids.numel(), 1)


npu_moe_distribute_dispatch.samples = [
    Sample(lambda make: (make(2, 32, dtype=torch.bfloat16), _ids(make), "softnpu%mirror_16", 16, 0, 32)),
    Sample(lambda make: (make(2, 32, dtype=torch.float16), _ids(make), "softnpu%mirror_16", 16, 0, 32),
           lambda make: {"quant_mode": 2, "scales": make(32, 32, low=0.5, high=2), "global_bs": 48,
                         "expert_token_nums_type": 0, "expert_scales": make(2, 3)}),
]  # fmt: skip


def _ids(make):
    """Two tokens and their three experts."""
    first = make(2, 1, dtype=torch.int32, low=0, high=8)
    return torch.cat([first, first + 8, first + 16], 1)
