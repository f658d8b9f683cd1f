"""npu_moe_distribute_combine_teardown: the experts' results arrive and are summed up."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.comm import _group, _moe
from torch_npu.ops.comm import _moe_halves as halves
from torch_npu.ops.comm.npu_moe_distribute_combine_setup import route


@npu_op(
    "npu_moe_distribute_combine_teardown(Tensor expand_x, Tensor quant_expand_x, Tensor expert_ids, "
    "Tensor expand_idx, Tensor expert_scales, Tensor comm_cmd_info, str group_ep, int ep_world_size, "
    "int ep_rank_id, int moe_expert_num, *, Tensor? x_active_mask=None, Tensor? shared_expert_x=None, "
    "int expert_shard_type=0, int shared_expert_num=1, int shared_expert_rank_num=0, int global_bs=0, "
    'int comm_quant_mode=0, int comm_type=0, str comm_alg="") -> Tensor',
    chips=("A5",),
)
def npu_moe_distribute_combine_teardown(
    expand_x,
    expert_ids,
    expand_idx,
    expert_scales,
    comm_cmd_info,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    x_active_mask,
    shared_expert_x,
    shared_expert_num,
    shared_expert_rank_num,
    global_bs,
):
    r"""Receives what the experts made of this rank's tokens and sums it up.

    $$ x_t = \sum_{k=1}^{K} w_{t,k} \, e_{t,k}, \qquad e = \mathrm{alltoallv}(\mathrm{expand\_x}) $$

    Args:
        expand_x: (A, H), float16 or bfloat16, as in npu_moe_distribute_combine_setup.
        quant_expand_x: (A, message), int8: the first result of the setup.
        expert_ids: (BS, K), int32, as at dispatch.
        expand_idx: (BS * K,), int32: the second result of npu_moe_distribute_dispatch_setup.
        expert_scales: w, (BS, K), float32.
        comm_cmd_info: the second result of the setup.
        group_ep: the name of the group of expert parallelism.
        ep_world_size: its ranks, 2, 4 or 8.
        ep_rank_id: this rank's number in it.
        moe_expert_num: 32.
        x_active_mask: bool, (BS,), as at dispatch; other tokens give 0.
        shared_expert_x: (BS, H) or (a, b, H) with a b = BS, of the dtype of expand_x: added.
        expert_shard_type: 0.
        shared_expert_num: 0.
        shared_expert_rank_num: 0.
        global_bs: as at dispatch.
        comm_quant_mode: 0.
        comm_type: 2 (URMA).
        comm_alg: "".

    Returns:
        x (BS, H), of the dtype of expand_x. Sums are float32.

    Constraints:
        BS 8, 16 or 256, H 4096 or 7168, K 6 or 8.

    Differs from upstream: all ranks meet here. CANN's kernel for Ascend950 reads neither `x_active_mask` nor
    `shared_expert_x`, which its page documents: here they count.
    """
    where = _moe.layout(
        expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num,
        shared_expert_rank_num, global_bs,
    )  # fmt: skip
    group = _group.find(group_ep)
    send = halves.counts_of(comm_cmd_info, where.ranks)
    target = comm_cmd_info.view(-1, halves.WORDS)[: int(send.sum()), 1]
    receive = group.all_to_all(send, [1] * group.size, [1] * group.size)
    back = group.all_to_all(
        expand_x[target.argsort(stable=True)], send.tolist(), receive.tolist()
    ).float()

    sent = _moe.rows_to_send(where, expert_ids, _moe.active_slots(x_active_mask, expert_ids))
    table = sent.counts(where)
    if bool((table.sum(1) > receive).any()):
        raise RuntimeError(
            "npu_moe_distribute_combine_teardown: argument 'x_active_mask' must be as at dispatch: of "
            f"{table.sum(1).tolist()} rows sent to the ranks, {receive.tolist()} came back"
        )
    within = table.cumsum(1) - table  # where a local expert's rows begin among those of its rank
    start = (receive.cumsum(0) - receive).unsqueeze(1) + within
    nth = expand_idx.view(where.tokens, where.slots)[sent.token, sent.slot].long()
    rows = back[start.reshape(-1)[sent.cell] + nth]
    total = _moe.weighted_sum(where, rows, sent.token, sent.slot, expert_scales)
    if shared_expert_x is not None:
        total = total + shared_expert_x.reshape(total.shape).float()
    return total.to(expand_x.dtype)


@npu_moe_distribute_combine_teardown.check
def _(
    expand_x,
    quant_expand_x,
    expert_ids,
    expand_idx,
    expert_scales,
    comm_cmd_info,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    x_active_mask,
    shared_expert_x,
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
    tokens, slots = expert_ids.shape
    rows, hidden = expand_x.shape
    must.dtype("quant_expand_x", quant_expand_x, torch.int8)
    must.shape("quant_expand_x", quant_expand_x, (rows, halves.result_size(hidden)))
    must.dtype("expand_idx", expand_idx, torch.int32)
    must.shape("expand_idx", expand_idx, (tokens * slots,))
    if must.has_data(expand_idx):
        low, high = (int(v) for v in torch.aminmax(expand_idx))
        fits = low >= 0 and high < tokens
        must.hold(fits, "expand_idx", f"values in [0, {tokens})", (low, high))
    must.dtype("expert_scales", expert_scales, torch.float32)
    must.shape("expert_scales", expert_scales, (tokens, slots))
    halves.check_commands(comm_cmd_info, rows, ep_world_size)
    halves.check_mask(x_active_mask, expert_ids)
    must.same_dtype("shared_expert_x", shared_expert_x, "expand_x", expand_x)
    must.ndim("shared_expert_x", shared_expert_x, 2, 3)
    if shared_expert_x is not None:
        ok = shared_expert_x.shape[-1] == hidden and shared_expert_x.numel() == tokens * hidden
        expected = f"of shape ({tokens}, {hidden}), or (a, b, {hidden}) with a b = {tokens}"
        must.hold(ok, "shared_expert_x", expected, tuple(shared_expert_x.shape))


@npu_moe_distribute_combine_teardown.meta
def _(expand_x, expert_ids):
    return expand_x.new_empty(expert_ids.shape[0], expand_x.shape[1])


def _sample(make, dtype):
    """What a setup in a mirrored group of two says: 48 rows to each of both ranks."""
    ids, _ = route(make)
    rows = make(96, 4096, dtype=dtype)
    nth = torch.arange(8, device=ids.device).repeat_interleave(6).int()
    cells = torch.arange(12, device=ids.device).repeat_interleave(8)
    counts = torch.full((2,), 48, device=ids.device)
    info = halves.commands(96, cells % 2, cells // 2, counts)
    unused = torch.zeros(96, halves.result_size(4096), dtype=torch.int8, device=ids.device)
    return rows, unused, ids, nth, make(8, 6), info, "softnpu%mirror_2", 2, 0, 32


npu_moe_distribute_combine_teardown.samples = [
    Sample(lambda make: _sample(make, torch.bfloat16), {"comm_type": 2, "shared_expert_num": 0}),
    Sample(lambda make: _sample(make, torch.float16),
           lambda make: {"comm_type": 2, "shared_expert_num": 0, "global_bs": 16,
                         "shared_expert_x": make(2, 4, 4096, dtype=torch.float16)}),
]  # fmt: skip
