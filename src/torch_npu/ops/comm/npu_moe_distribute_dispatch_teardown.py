"""npu_moe_distribute_dispatch_teardown: the tokens that other ranks' dispatch_setup laid out arrive."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group, _moe
from torch_npu.ops.comm import _moe_halves as halves
from torch_npu.ops.comm.npu_moe_distribute_dispatch_setup import ids


@npu_op(
    "npu_moe_distribute_dispatch_teardown(Tensor x, Tensor y, Tensor expert_ids, Tensor comm_cmd_info, "
    "str group_ep, int ep_world_size, int ep_rank_id, int moe_expert_num, *, int expert_shard_type=0, "
    "int shared_expert_num=1, int shared_expert_rank_num=0, int quant_mode=0, int global_bs=0, "
    'int expert_token_nums_type=1, int comm_type=0, str comm_alg="") '
    "-> (Tensor, Tensor, Tensor, Tensor)",
    chips=("A5",),
)
def npu_moe_distribute_dispatch_teardown(
    x,
    y,
    expert_ids,
    comm_cmd_info,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    shared_expert_num,
    shared_expert_rank_num,
    quant_mode,
    global_bs,
):
    r"""Receives the tokens of this rank's experts, ordered by expert, then by the rank they came from, then by token.

    $$ \mathrm{expand\_x} = \mathrm{alltoallv}(y) $$

    Args:
        x: (BS, H), as in npu_moe_distribute_dispatch_setup; its width is looked at.
        y: the messages, the first result of the setup.
        expert_ids: (BS, K), int32, as in the setup.
        comm_cmd_info: the third result of the setup.
        group_ep: the name of the group of expert parallelism.
        ep_world_size: its ranks, 2 to 384.
        ep_rank_id: this rank's number in it.
        moe_expert_num: routed experts, a multiple of ep_world_size, up to 512.
        expert_shard_type: 0.
        shared_expert_num: as in the setup.
        shared_expert_rank_num: 0.
        quant_mode: as in the setup.
        global_bs: as in the setup.
        expert_token_nums_type: 1: tokens of each local expert.
        comm_type: 2 (URMA).
        comm_alg: "".

    Returns:
        expand_x (A, H), of the dtype of y: the rows that arrived, then zeros; dynamic_scales: (A, scales), uint8
        (float8_e8m0fnu) in quant_mode 4, else (A,), float32, zeros; assist_info_for_combine (A * 128,), int32: prefix
        sums of the rows by local expert and rank, then zeros; expert_token_nums, int64, one a local expert. A is
        global_bs min(local experts, K).

    Differs from upstream: all ranks meet here, where the card's teardown waits for the setups of the others alone.
    """
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    group = _group.find(group_ep)
    own = halves.counts_of(comm_cmd_info, moe_expert_num).view(1, where.ranks, where.local_experts)
    table = group.all_gather(own.contiguous())  # (from, to, local expert)
    send = table[where.rank].sum(1).tolist()
    mine = table[:, where.rank]
    receive = mine.sum(1).tolist()
    rows = group.all_to_all(y[: sum(send)].contiguous().view(torch.uint8), send, receive)
    rows = rows[halves.arrived(where, mine)].view(y.dtype)
    values, scales = halves.unpack(rows, x.shape[1], quant_mode)

    counts = mine.t().contiguous()
    info = x.new_zeros(where.capacity * _moe.INFO, dtype=torch.int32)
    info[: counts.numel()] = counts.reshape(-1).cumsum(0).int()
    bytes_ = _moe.padded(values.contiguous().view(torch.uint8), where.capacity)
    return bytes_.view(y.dtype), _moe.padded(scales, where.capacity), info, counts.sum(1)


@npu_moe_distribute_dispatch_teardown.check
def _(
    x,
    y,
    expert_ids,
    comm_cmd_info,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    expert_shard_type,
    shared_expert_num,
    shared_expert_rank_num,
    quant_mode,
    global_bs,
    expert_token_nums_type,
    comm_type,
    comm_alg,
):
    halves.check(
        expert_ids, group_ep, ep_world_size, ep_rank_id, moe_expert_num, expert_shard_type,
        shared_expert_num, shared_expert_rank_num, global_bs, comm_type, comm_alg,
    )  # fmt: skip
    halves.check_tokens(x, expert_ids, quant_mode)
    if quant_mode == halves.MX:
        must.dtype("y", y, torch.float8_e4m3fn, torch.float8_e5m2)
    else:
        must.same_dtype("y", y, "x", x)
    tokens, slots = expert_ids.shape
    rows = tokens * (slots + shared_expert_num)
    must.shape("y", y, (rows, halves.message_size(x.shape[1], quant_mode)))
    halves.check_commands(comm_cmd_info, rows, moe_expert_num)
    must.choice("expert_token_nums_type", expert_token_nums_type, (1,))
    where = _moe.layout(expert_ids, ep_world_size, ep_rank_id, moe_expert_num, 0, 0, global_bs)
    # the card writes the prefix sums past the end of assist_info_for_combine otherwise
    fits = where.capacity * _moe.INFO >= moe_expert_num
    must.hold(fits, "expert_ids", "of more tokens, for so many experts", tuple(expert_ids.shape))


@npu_moe_distribute_dispatch_teardown.meta
def _(x, y, expert_ids, ep_world_size, ep_rank_id, moe_expert_num, quant_mode, global_bs):
    where = _moe.layout(expert_ids, ep_world_size, ep_rank_id, moe_expert_num, 0, 0, global_bs)
    room, hidden = where.capacity, x.shape[1]
    if quant_mode == halves.MX:
        scales = x.new_empty((room, halves.scale_count(hidden)), dtype=torch.uint8)
    else:
        scales = x.new_empty(room, dtype=torch.float32)
    return (
        y.new_empty((room, hidden)),
        scales,
        x.new_empty(room * _moe.INFO, dtype=torch.int32),
        x.new_empty(where.local_experts, dtype=torch.int64),
    )


def _sample(make, hidden, dtype, message, shared, quant_mode):
    """What a setup in a mirrored group of two laid out."""
    x, experts = make(3, hidden, dtype=dtype), ids(make)
    y, _, info = halves.lay_out(x, experts, 3, 8, 4, 3 * (2 + shared), message, quant_mode)
    return x, y, experts, info, "softnpu%mirror_2", 2, 0, 8


npu_moe_distribute_dispatch_teardown.samples = [
    Sample(lambda make: _sample(make, 1024, torch.bfloat16, torch.bfloat16, 0, 0),
           {"comm_type": 2, "shared_expert_num": 0}),
    Sample(lambda make: _sample(make, 1040, torch.float16, torch.float16, 1, 0),
           {"comm_type": 2, "global_bs": 8}),
]  # fmt: skip
