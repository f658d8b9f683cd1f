"""Where tokens of a mixture of experts go and how they come back: what dispatch and combine share.

The first `shared_ranks` ranks hold shared experts, the others `local_experts` routed ones each. A token goes to the ranks
of its K experts and, where there are shared ranks, to one replica of each shared expert. On arrival rows are ordered by
local expert, then by the rank they came from, then by token.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from softnpu import chips
from torch_npu.ops._shared import _dynamic
from torch_npu.ops._shared._rounding import saturate
from torch_npu.ops.comm import _group

#: int32 words of assist info a row; the first three are the source rank, the token and the slot
INFO = 128
_INT8 = 127.0


@dataclass(frozen=True)
class Layout:
    """Who holds what, and how large the outputs are."""

    ranks: int
    rank: int
    experts: int
    shared_experts: int
    shared_ranks: int
    tokens: int
    slots: int  # K
    global_tokens: int

    @property
    def is_shared(self) -> bool:
        return self.rank < self.shared_ranks

    @property
    def routed_experts(self) -> int:
        """Routed experts on a rank that has them."""
        return self.experts // (self.ranks - self.shared_ranks)

    @property
    def local_experts(self) -> int:
        return 1 if self.is_shared else self.routed_experts

    @property
    def replicas(self) -> int:
        """Ranks that hold the same shared expert."""
        return self.shared_ranks // self.shared_experts

    @property
    def capacity(self) -> int:
        """A: rows that may arrive here at most."""
        if self.is_shared:
            return self.global_tokens // self.ranks * -(-self.ranks // self.replicas)
        return self.global_tokens * min(self.routed_experts, self.slots)


def layout(
    expert_ids, ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num, shared_expert_rank_num, global_bs
) -> Layout:  # fmt: skip
    tokens, slots = expert_ids.shape
    return Layout(
        ep_world_size, ep_rank_id, moe_expert_num, shared_expert_num, shared_expert_rank_num, tokens, slots,
        global_bs or tokens * ep_world_size,
    )  # fmt: skip


@dataclass
class SentRows:
    """Rows that leave this rank, in the order in which they leave: by rank, then local expert, then token."""

    token: torch.Tensor
    slot: torch.Tensor  # K and up: shared experts
    expert: torch.Tensor  # row of `scales`: shared experts first
    cell: torch.Tensor  # rank * most local experts + local expert

    def counts(self, where: Layout) -> torch.Tensor:
        """Rows for each local expert of each rank."""
        width = where.routed_experts
        return torch.bincount(self.cell, minlength=where.ranks * width).view(where.ranks, width)


def active_slots(x_active_mask, expert_ids) -> torch.Tensor:
    """(BS, K): which of a token's experts take part."""
    if x_active_mask is None:
        return torch.ones_like(expert_ids, dtype=torch.bool)
    if x_active_mask.dim() == 1:
        return x_active_mask.unsqueeze(1).expand(expert_ids.shape)
    return x_active_mask


def rows_to_send(where: Layout, expert_ids: torch.Tensor, active: torch.Tensor) -> SentRows:
    """All rows of this rank and where each goes; special experts stay at home."""
    ids = expert_ids.long()
    token, slot = (active & (ids < where.experts)).nonzero(as_tuple=True)
    expert = ids[token, slot]
    width = where.routed_experts
    # (shared ranks + e // width) * width + e % width
    cell = where.shared_ranks * width + expert
    shift = where.shared_experts if where.shared_ranks else 0
    expert = expert + shift
    if where.shared_ranks:
        own = active.any(1).nonzero().squeeze(1)
        for s in range(where.shared_experts):
            home = s * where.replicas + where.rank % where.replicas
            token = torch.cat([token, own])
            slot = torch.cat([slot, torch.full_like(own, where.slots + s)])
            expert = torch.cat([expert, torch.full_like(own, s)])
            cell = torch.cat([cell, torch.full_like(own, home * width)])
    order = (cell * max(where.tokens, 1) + token).argsort(stable=True)
    return SentRows(token[order], slot[order], expert[order], cell[order])


def quantize(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 a row, and the factor that undoes it."""
    return _dynamic.symmetric(rows.float(), "int8", order=_dynamic.INVERSE)


def _group_size(dtype: torch.dtype) -> int:
    """How many elements the kernels reduce at once, 32 bytes: of fp32, or of float16 on Atlas A2."""
    return 16 if dtype == torch.float16 and chips.current().family == "A2" else 8


def quantize_groups(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 as results travel, and the scales of groups in the dtype of the rows (moe_distribute_combine_v2_quant.h)."""
    size = _group_size(rows.dtype)
    missing = -rows.shape[1] % size
    blocks = torch.nn.functional.pad(rows.float(), (0, missing)).unflatten(1, (-1, size))
    scale = blocks.abs().amax(2) * _dynamic.reciprocal(_INT8, torch.float32)
    values = (blocks / torch.where(scale == 0, 1.0, scale).unsqueeze(2)).half().float()
    return saturate(values.flatten(1)[:, : rows.shape[1]], torch.int8), scale.to(rows.dtype)


def restore_groups(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """What arrives: the product in the dtype of the scales, then in fp32."""
    factors = scale.float().repeat_interleave(_group_size(scale.dtype), 1)[:, : values.shape[1]]
    return (values.float() * factors).to(scale.dtype).float()


def timed(info: torch.Tensor | None, began: float) -> None:
    """Adds the microseconds since `began` to the record of every rank."""
    if info is not None:
        info += int((time.perf_counter() - began) * 1e6)


@dataclass
class Dispatched:
    """What has arrived, with room for as much as may arrive."""

    rows: torch.Tensor
    scales: torch.Tensor
    info: torch.Tensor  # (n, 3): source rank, token, slot
    weights: torch.Tensor | None
    counts: torch.Tensor  # (local experts, ranks)
    sent: SentRows


def dispatch(
    where, x, expert_ids, group_ep, scales, x_active_mask, expert_scales, quant_mode, performance_info=None
) -> Dispatched:  # fmt: skip
    """Sends every token to its experts."""
    group = _group.find(group_ep)
    sent = rows_to_send(where, expert_ids, active_slots(x_active_mask, expert_ids))
    table = group.all_gather(
        sent.counts(where).unsqueeze(0).contiguous()
    )  # (from, to, local expert)
    send = table[where.rank].sum(1).tolist()
    mine = table[:, where.rank, : where.local_experts]
    receive = mine.sum(1).tolist()

    rows = x[sent.token]
    factor = rows.new_zeros(rows.shape[0], dtype=torch.float32)
    if x.dtype == torch.int32:
        factor = scales[sent.token]
    elif quant_mode == 2:
        wide = rows.float() if scales is None else rows.float() * scales[sent.expert]
        rows, factor = quantize(wide)
    origin = torch.full_like(sent.token, where.rank)
    info = torch.stack([origin, sent.token, sent.slot], 1).int()

    began = time.perf_counter()
    rows = group.all_to_all(rows, send, receive)
    timed(performance_info, began)
    factor = group.all_to_all(factor, send, receive)
    info = group.all_to_all(info, send, receive)
    weights = None
    if expert_scales is not None:
        routed = sent.slot < where.slots
        own = torch.where(
            routed, expert_scales[sent.token, sent.slot.clamp(max=where.slots - 1)], 1.0
        )
        weights = group.all_to_all(own, send, receive)

    # from (rank, expert) to (expert, rank)
    cells = torch.arange(mine.numel())
    expert_first = (cells % where.local_experts) * where.ranks + cells // where.local_experts
    order = expert_first.repeat_interleave(mine.reshape(-1)).argsort(stable=True)
    return Dispatched(
        rows[order], factor[order], info[order], None if weights is None else weights[order],
        mine.t().contiguous(), sent,
    )  # fmt: skip


def padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    """The rows, followed by zeros up to `count`."""
    out = rows.new_zeros((count, *rows.shape[1:]))
    out[: rows.shape[0]] = rows
    return out


def outputs(where, got, expert_scales, tp_world_size, expert_token_nums_type, idx, version):
    """The seven outputs of both dispatch operators; `idx` is the third."""
    room = where.capacity
    per_expert = got.counts.sum(1)
    nums = per_expert if expert_token_nums_type == 1 else per_expert.cumsum(0)
    recv = got.counts.reshape(-1).cumsum(0).int()
    extra = _extra_counts(where, version) if expert_scales is not None else 0
    weights = got.rows.new_zeros(0, dtype=torch.float32)
    if got.weights is not None:
        weights = padded(got.weights, room)
    return (
        padded(got.rows, room), padded(got.scales, room), idx, nums.long(), padded(recv, recv.numel() + extra),
        got.rows.new_zeros(tp_world_size, dtype=torch.int32), weights,
    )  # fmt: skip


def _extra_counts(where: Layout, version: int) -> int:
    """Room for what reducing inside a server needs, of 8 ranks each; of no meaning here. v2 on Ascend950 has none."""
    if version == 2 and chips.current().family == "A5":
        return 0
    return 2 * where.global_tokens * where.slots * (where.ranks // 8)


def outputs_meta(where, x, dtype, expert_scales, tp_world_size, idx_size, version):
    """Shapes of the seven outputs."""

    def make(*shape, dtype):
        return x.new_empty(shape, dtype=dtype)

    room = where.capacity
    counts = where.ranks * where.local_experts
    if expert_scales is not None:
        counts += _extra_counts(where, version)
    return (
        make(room, x.shape[1], dtype=dtype), make(room, dtype=torch.float32), make(idx_size, dtype=torch.int32),
        make(where.local_experts, dtype=torch.int64), make(counts, dtype=torch.int32),
        make(tp_world_size, dtype=torch.int32),
        make(room if expert_scales is not None else 0, dtype=torch.float32),
    )  # fmt: skip


def _sent_back(group, rows, send, receive, comm_quant_mode, performance_info=None):
    """The all-to-all of results, through int8 where communication is quantized; fp32 comes back."""
    began = time.perf_counter()
    if comm_quant_mode == 2:
        small, scale = quantize_groups(rows)
        back = group.all_to_all(small, send, receive)
        timed(performance_info, began)
        return restore_groups(back, group.all_to_all(scale, send, receive))
    back = group.all_to_all(rows, send, receive)
    timed(performance_info, began)
    return back.float()


def arrival_counts(where: Layout, ep_send_counts: torch.Tensor) -> torch.Tensor:
    """(local experts, ranks) from their prefix sums."""
    prefix = ep_send_counts[: where.local_experts * where.ranks].long()
    return torch.diff(prefix, prepend=prefix.new_zeros(1)).view(where.local_experts, where.ranks)


def weighted_sum(where, results, token, slot, expert_scales):
    """Sum over a token's experts: routed ones weighted, shared ones as they are. fp32."""
    width = where.slots + (where.shared_experts if where.shared_ranks else 0)
    table = results.new_zeros(where.tokens, width, results.shape[1])
    table[token.long(), slot.long()] = results
    total = (table[:, : where.slots] * expert_scales.float().unsqueeze(2)).sum(1)
    return total + table[:, where.slots :].sum(1)


def combine_by_info(
    where, expand_x, info, ep_send_counts, expert_scales, group_ep, comm_quant_mode=0, performance_info=None
):  # fmt: skip
    """Results go back to where the assist info says they came from, and are summed. fp32."""
    group = _group.find(group_ep)
    count = int(arrival_counts(where, ep_send_counts).sum())
    origin, token, slot = info[: count * INFO].view(count, INFO)[:, :3].unbind(1)
    order = origin.argsort(stable=True)
    send = torch.bincount(origin, minlength=where.ranks)
    receive = group.all_to_all(send, [1] * where.ranks, [1] * where.ranks).tolist()
    back = _sent_back(
        group, expand_x[:count][order], send.tolist(), receive, comm_quant_mode, performance_info
    )
    labels = group.all_to_all(torch.stack([token, slot], 1)[order], send.tolist(), receive)
    return weighted_sum(where, back, labels[:, 0], labels[:, 1], expert_scales)


def combine_by_index(
    where,
    expand_x,
    expert_ids,
    expand_idx,
    ep_send_counts,
    expert_scales,
    group_ep,
    comm_quant_mode,
):
    """Results go back by the counts alone; `expand_idx` says which one of an expert's is a token's. fp32."""
    group = _group.find(group_ep)
    counts = arrival_counts(where, ep_send_counts)
    rank_of_cell = torch.arange(where.ranks).repeat(where.local_experts)
    count = int(counts.sum())
    order = rank_of_cell.repeat_interleave(counts.reshape(-1)).argsort(stable=True)
    sent = rows_to_send(where, expert_ids, active_slots(None, expert_ids))
    table = sent.counts(where)
    back = _sent_back(
        group,
        expand_x[:count][order],
        counts.sum(0).tolist(),
        table.sum(1).tolist(),
        comm_quant_mode,
    )
    start = table.reshape(-1).cumsum(0) - table.reshape(-1)
    routed = sent.slot < where.slots
    nth = torch.zeros_like(sent.token)
    nth[routed] = expand_idx.view(where.tokens, where.slots)[
        sent.token[routed], sent.slot[routed]
    ].long()
    nth[~routed] = sent.token[~routed]
    return weighted_sum(where, back[start[sent.cell] + nth], sent.token, sent.slot, expert_scales)


def special(
    where,
    total,
    expert_ids,
    expert_scales,
    x_active_mask,
    ori_x,
    alpha_1,
    alpha_2,
    v,
    zero,
    copy,
    const,
):
    """Adds the experts that need no other rank: zero, copy and constant ones."""
    if ori_x is None or copy + const == 0:
        return total
    ids = expert_ids.long() - where.experts - zero
    weight = expert_scales.float() * active_slots(x_active_mask, expert_ids)
    copies = (weight * ((ids >= 0) & (ids < copy))).sum(1, keepdim=True)
    total = total + copies * ori_x.float()
    ids = ids - copy
    for c in range(const):
        share = (weight * (ids == c)).sum(1, keepdim=True)
        value = alpha_1[c].float() * ori_x.float() + alpha_2[c].float() * v[c].float()
        total = total + share * value
    return total
