"""Dispatch and combine in two halves each, setup and teardown: messages, commands, and the constraints they share.

Setup lays out what leaves this rank and returns at once, teardown waits for what arrives. What is sent lies in a
setup's result and in its commands, of 16 int32 words each: one a row (1, the rank it goes to, the expert's number
there), then one for each expert or rank with the number of rows. Rows travel when teardown is called, since a
process of the host cannot write into the memory of another that is not looking.

Rules: CANN's op_host/op_tiling of the four operators (ops-transformer, mc2/moe_distribute_*_setup and _teardown).
"""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._shared import _formats, _mx
from torch_npu.ops.comm import _group, _moe
from torch_npu.ops.comm._moe_rules import HALF, check_ids

WORDS = 16  # int32 words of a command
MX = 4  # quant_mode: float8 with a scale for 32 values
_URMA = 2  # comm_type
_EXPERTS, _HIDDEN, _TOKENS, _SLOTS, _SHARED = 512, (1024, 8192), 512, 16, 4
_COMBINE = {"ep_world_size": (2, 4, 8), "BS": (8, 16, 256), "H": (4096, 7168), "K": (6, 8)}
_COMBINE_EXPERTS = 32


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def scale_count(hidden: int) -> int:
    """Scales of a token: one for 32 values, in pairs."""
    return _mx.pairs(hidden) * _mx.PAIR


def message_size(hidden: int, quant_mode: int) -> int:
    """Elements of a message: the values, their scales behind the next multiple of 256, up to a multiple of 512 bytes."""
    if quant_mode == MX:
        return _up(_up(hidden, 256) + scale_count(hidden), 512)
    return _up(hidden, 256)


def result_size(hidden: int) -> int:
    """Bytes of a row of `quant_expand_x`."""
    return _up(_up(hidden, 32) + _up(hidden, 8) // 8 * 4, 512)


def message_dtype(x: torch.Tensor, y_dtype: int | None) -> torch.dtype:
    return x.dtype if y_dtype is None else getattr(torch, _formats.chosen(y_dtype))


def pack(rows: torch.Tensor, dtype: torch.dtype, quant_mode: int) -> torch.Tensor:
    """The message of each row."""
    hidden = rows.shape[1]
    out = rows.new_zeros((rows.shape[0], message_size(hidden, quant_mode)), dtype=dtype)
    if quant_mode == MX:
        values, scales = _mx.quantize(rows, str(dtype).removeprefix("torch."))
        at = _up(hidden, 256)
        stored = out.view(torch.uint8)
        stored[:, :hidden] = values.view(torch.uint8)
        stored[:, at : at + scale_count(hidden)] = scales.flatten(1)
    else:
        out[:, :hidden] = rows
    return out


def unpack(
    messages: torch.Tensor, hidden: int, quant_mode: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The values of the messages, and their scales: bytes, or zeros where nothing is quantized."""
    if quant_mode == MX:
        at = _up(hidden, 256)
        bytes_ = messages.view(torch.uint8)
        return messages[:, :hidden], bytes_[:, at : at + scale_count(hidden)]
    return messages[:, :hidden], messages.new_zeros(messages.shape[0], dtype=torch.float32)


def lay_out(x, expert_ids, tokens, moe_expert_num, local, rows, dtype, quant_mode):
    """y, expand_idx and the commands of a dispatch whose first `tokens` tokens take part."""
    slots = expert_ids.shape[1]
    chosen = expert_ids[:tokens].long().reshape(-1)
    order = chosen.argsort(stable=True)
    expert = chosen[order]
    each = torch.arange(moe_expert_num, device=chosen.device)
    first = torch.searchsorted(expert, each)
    counts = torch.searchsorted(expert, each, right=True) - first
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel(), device=order.device)
    expand_idx = expert_ids.new_zeros(expert_ids.numel())
    expand_idx[: order.numel()] = (place - first[chosen]).int()
    messages = pack(x[order // slots], dtype, quant_mode)
    y = messages.new_zeros((rows, messages.shape[1]))
    y[: messages.shape[0]] = messages
    return y, expand_idx, commands(rows, expert // local, expert % local, counts)


def commands(
    rows: int, ranks: torch.Tensor, experts: torch.Tensor, counts: torch.Tensor
) -> torch.Tensor:
    """One command for each of `rows` (empty past those that leave), then one for each count."""
    table = counts.new_zeros(rows + counts.numel(), WORDS, dtype=torch.int32)
    table[: ranks.shape[0], 0] = 1
    table[: ranks.shape[0], 1] = ranks.int()
    table[: ranks.shape[0], 2] = experts.int()
    table[rows:, 0] = counts.reshape(-1).int()
    return table.view(-1)


def counts_of(info: torch.Tensor, count: int) -> torch.Tensor:
    """The numbers of rows behind the commands of the rows."""
    return info.view(-1, WORDS)[-count:, 0].long()


def active(x_active_mask: torch.Tensor | None, expert_ids: torch.Tensor) -> int:
    """How many tokens take part; they come first."""
    return expert_ids.shape[0] if x_active_mask is None else int(x_active_mask.sum())


def check(
    expert_ids,
    group_ep,
    ep_world_size,
    ep_rank_id,
    moe_expert_num,
    expert_shard_type,
    shared_expert_num,
    shared_expert_rank_num,
    global_bs,
    comm_type,
    comm_alg,
):
    """The group, its experts and the way of communication."""
    must.dtype("expert_ids", expert_ids, torch.int32)
    must.ndim("expert_ids", expert_ids, 2)
    tokens, slots = expert_ids.shape
    must.hold(2 <= ep_world_size <= 384, "ep_world_size", "in [2, 384]", ep_world_size)
    _group.check_name("group_ep", group_ep, "ep_world_size", ep_world_size)
    own = _group.find(group_ep).rank
    must.hold(
        ep_rank_id == own, "ep_rank_id", f"this rank's number in the group ({own})", ep_rank_id
    )
    must.unset("expert_shard_type", expert_shard_type, 0)
    ok = 0 <= shared_expert_num <= _SHARED
    must.hold(ok, "shared_expert_num", f"in [0, {_SHARED}]", shared_expert_num)
    must.unset("shared_expert_rank_num", shared_expert_rank_num, 0)
    fits = 0 < moe_expert_num <= _EXPERTS and moe_expert_num % ep_world_size == 0
    expected = f"a multiple of ep_world_size ({ep_world_size}) up to {_EXPERTS}"
    must.hold(fits, "moe_expert_num", expected, moe_expert_num)
    must.hold(0 < tokens <= _TOKENS, "expert_ids", f"of BS in (0, {_TOKENS}]", tokens)
    most = min(_SLOTS, moe_expert_num)
    must.hold(0 < slots <= most, "expert_ids", f"of K in (0, {most}]", slots)
    least = tokens * ep_world_size
    whole = global_bs % ep_world_size == 0 and global_bs <= _TOKENS * ep_world_size
    must.hold(
        global_bs == 0 or (global_bs >= least and whole),
        "global_bs",
        f"0, or the largest BS of a rank times ep_world_size (at least {least})",
        global_bs,
    )
    must.hold(comm_type == _URMA, "comm_type", f"{_URMA} (URMA)", comm_type)
    must.hold(comm_alg == "", "comm_alg", "''", repr(comm_alg))
    check_ids(expert_ids, moe_expert_num)


def check_tokens(x, expert_ids, quant_mode):
    """The tokens that dispatch sends."""
    must.dtype("x", x, *HALF)
    must.shape("x", x, (expert_ids.shape[0], None))
    low, high = _HIDDEN
    must.hold(low <= x.shape[1] <= high, "x", f"of H in [{low}, {high}]", x.shape[1])
    must.choice("quant_mode", quant_mode, (0, MX))


def check_mask(x_active_mask, expert_ids):
    must.dtype("x_active_mask", x_active_mask, torch.bool)
    must.shape("x_active_mask", x_active_mask, (expert_ids.shape[0],))
    if must.has_data(x_active_mask):
        first = bool((x_active_mask[:-1] >= x_active_mask[1:]).all())
        must.hold(first, "x_active_mask", "true values before false ones", "a later one")


def check_combine(
    expand_x, expert_ids, where, ep_world_size, moe_expert_num, shared_expert_num, comm_quant_mode
):
    """What combine has besides: the sizes that CANN's kernels were released for."""
    must.dtype("expand_x", expand_x, *HALF)
    must.ndim("expand_x", expand_x, 2)
    must.choice("ep_world_size", ep_world_size, _COMBINE["ep_world_size"])
    must.choice("moe_expert_num", moe_expert_num, (_COMBINE_EXPERTS,))
    must.unset("shared_expert_num", shared_expert_num, 0)
    must.unset("comm_quant_mode", comm_quant_mode, 0)
    tokens, slots = expert_ids.shape
    for name, kind, value in (
        ("expert_ids", "BS", tokens),
        ("expand_x", "H", expand_x.shape[1]),
        ("expert_ids", "K", slots),
    ):
        allowed = _COMBINE[kind]
        must.hold(value in allowed, name, f"of {kind} {must.one_of(allowed)}", value)
    enough = expand_x.shape[0] >= where.capacity
    must.hold(enough, "expand_x", f"of A = {where.capacity} rows or more", expand_x.shape[0])


def check_commands(info, rows, counts):
    """The commands of the setup that belongs to a teardown."""
    must.dtype("comm_cmd_info", info, torch.int32)
    must.shape("comm_cmd_info", info, ((rows + counts) * WORDS,))


def arrived(where: _moe.Layout, table: torch.Tensor) -> torch.Tensor:
    """(expert, rank) of each row, in the order in which rows arrive, as the place it has in expand_x."""
    cells = torch.arange(table.numel(), device=table.device)
    expert_first = (cells % where.local_experts) * where.ranks + cells // where.local_experts
    return expert_first.repeat_interleave(table.reshape(-1)).argsort(stable=True)
