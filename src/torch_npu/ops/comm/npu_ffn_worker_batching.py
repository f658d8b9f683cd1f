"""npu_ffn_worker_batching: an FFN worker collects the tokens in its window by expert."""

from __future__ import annotations

import functools

import torch
from torch.fx.node import has_side_effect

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _schedule_context as contexts

_DTYPES = (torch.float16, torch.bfloat16, torch.int8)
_INT8 = 2  # token_dtype
_NOBODY = 1_000_000  # expert numbers from here on are masked
_CLEARED = 2**31 - 1
_MAX_EXPERTS, _MAX_SESSIONS, _MAX_CHOICES = 8192, 1024, 64


@npu_op(
    "npu_ffn_worker_batching(Tensor schedule_context, int expert_num, int[4] max_out_shape, *, int token_dtype=0, "
    "int need_schedule=0, int layer_num=0) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    chips=("A2", "A3", "A5"),
)
def npu_ffn_worker_batching(
    schedule_context, expert_num, max_out_shape, token_dtype, need_schedule
):
    r"""Sorts the tokens of all sessions by the expert that they are for, and copies them in this order.

    $$ p = \mathrm{argsort}(\mathrm{expert\_ids}) \text{ (stable, masked ones left out)}, \qquad y_i = d_{p_i} $$

    The data d lie at token_data_buf of the context's FFN part, (sessions, micro batches, BS, K + 1, bytes); with int8 a token
    is followed by its factor, float32.

    Args:
        schedule_context: int8, (1024,): CANN's ScheduleContext, as `torch_npu._afd` makes it.
        expert_num: experts of this rank, up to 8192.
        max_out_shape: A, BS, K + 1, H: the most sessions, tokens, experts of a token, and the width.
        token_dtype: 0: float16; 1: bfloat16; 2: int8 with a factor.
        need_schedule: 0: takes the sessions that ffn_worker_scheduler has listed; 1: waits until all sessions have sent the
            micro batch at polling_index, takes it, clears its table (expert numbers of 1000000 and more are masked) and
            moves polling_index on.
        layer_num: 0 to expert_num; layers number their experts one after another.

    Returns:
        y (A BS (K + 1), H); group_list (expert_num, 2), int64: an expert and its number of rows, experts with rows alone,
        then zeros; session_ids, micro_batch_ids, token_ids, expert_offsets (of a token), int32, one a row; dynamic_scale,
        float32, the factors; actual_token_num, (1,), int64: how many rows there are. What lies behind them is zero.

    Differs from upstream: rows behind the last one, which are uninitialized there, are zero. A wait that takes more than two
    minutes raises.
    """
    context = contexts.Context("npu_ffn_worker_batching", "schedule_context", schedule_context)
    sessions, batches = context["session_num"], context["micro_batch_num"]
    tokens, choices = context["micro_batch_size"], context["selected_expert_num"]
    room, width = max_out_shape[0] * max_out_shape[1] * max_out_shape[2], max_out_shape[3]
    context.require(sessions <= _MAX_SESSIONS, "session_num", f"of at most {_MAX_SESSIONS}")
    context.require(choices <= _MAX_CHOICES, "selected_expert_num", f"of at most {_MAX_CHOICES}")
    context.require(batches > 0, "micro_batch_num", "greater than 0")
    if need_schedule:
        experts, session_of, batch_of = _scan(context, sessions, batches, tokens * choices)
    else:
        count = context["ffn.out_num"]
        context.require(count <= sessions, "ffn.out_num", f"of at most session_num ({sessions})")
        shape = (count, tokens * choices)
        experts = context.memory("ffn.expert_ids_buf", shape, torch.int32).clone()
        session_of = context.memory("ffn.session_ids_buf", (count,), torch.int32).long()
        batch_of = context.memory("ffn.micro_batch_ids_buf", (count,), torch.int32).long()
    flat = experts.reshape(-1)
    fits = flat.numel() <= room
    context.require(fits, "session_num", f"and tokens that fit into max_out_shape ({room} rows)")

    valid = (flat < _NOBODY).nonzero().squeeze(1)
    order = valid[flat[valid].argsort(stable=True)]
    row, place = order // (tokens * choices), order % (tokens * choices)
    session, batch = session_of[row], batch_of[row]
    token, choice = place // choices, place % choices

    dtype = _DTYPES[token_dtype]
    size = context["attn_to_ffn_token_size"]
    needed = width * dtype.itemsize + (4 if token_dtype == _INT8 else 0)
    context.require(size >= needed, "attn_to_ffn_token_size", f"of at least {needed} bytes")
    window = (sessions, batches, tokens, choices, size)
    if order.numel():
        data = context.memory("ffn.token_data_buf", window, torch.uint8)[
            session, batch, token, choice
        ]
    else:
        data = torch.zeros(0, size, dtype=torch.uint8)
    end = width * dtype.itemsize
    scale = torch.zeros(order.numel())
    if token_dtype == _INT8:
        scale = data[:, end : end + 4].contiguous().view(torch.float32).squeeze(1)
    present, counts = flat[order].unique_consecutive(return_counts=True)
    groups = torch.stack([present, counts], 1)[:expert_num]
    return (
        _filled(data[:, :end].contiguous(), room).view(dtype), _filled(groups.long(), expert_num),
        *(_filled(t.int(), room) for t in (session, batch, token, choice)),
        _filled(scale, room), torch.tensor([order.numel()]),
    )  # fmt: skip


def _filled(rows, count):
    out = rows.new_zeros((count, *rows.shape[1:]))
    out[: rows.shape[0]] = rows
    return out


def _scan(context, sessions, batches, per_session):
    """The experts of the micro batch at polling_index, once every session has sent it; clears its table."""
    batch = context["ffn.polling_index"]
    context.require(batch < batches, "ffn.polling_index", f"below micro_batch_num ({batches})")
    shape = (sessions, batches, 2 + per_session)
    table = context.memory("ffn.token_info_buf", shape, torch.int32)[:, batch]
    context.wait(
        lambda: int(table[:, 0].sum()) == sessions, f"micro batch {batch} of all sessions", stoppable=False
    )  # fmt: skip
    experts = table[:, 2:].clone()
    table[:, 2:] = _CLEARED
    table[:, 0] = 0
    context["ffn.polling_index"] = (batch + 1) % batches
    return experts, torch.arange(sessions), torch.full((sessions,), batch)


@npu_ffn_worker_batching.check
def _(schedule_context, expert_num, max_out_shape, token_dtype, need_schedule, layer_num):
    contexts.check("schedule_context", schedule_context)
    ok = 0 < expert_num <= _MAX_EXPERTS
    must.hold(ok, "expert_num", f"in (0, {_MAX_EXPERTS}]", expert_num)
    sessions, tokens, choices, width = max_out_shape
    ok = 0 < sessions <= _MAX_SESSIONS and tokens > 0 and 0 < choices <= _MAX_CHOICES and width > 0
    expected = f"A in (0, {_MAX_SESSIONS}], BS > 0, K + 1 in (0, {_MAX_CHOICES}], H > 0"
    must.hold(ok, "max_out_shape", expected, list(max_out_shape))
    must.choice("token_dtype", token_dtype, (0, 1, 2))
    must.choice("need_schedule", need_schedule, (0, 1))
    must.hold(0 <= layer_num <= expert_num, "layer_num", f"in [0, {expert_num}]", layer_num)


@npu_ffn_worker_batching.meta
def _(schedule_context, expert_num, max_out_shape, token_dtype):
    rows, width = max_out_shape[0] * max_out_shape[1] * max_out_shape[2], max_out_shape[3]

    def make(*shape, dtype=torch.int32):
        return schedule_context.new_empty(shape, dtype=dtype)

    return (
        make(rows, width, dtype=_DTYPES[token_dtype]), make(expert_num, 2, dtype=torch.int64),
        make(rows), make(rows), make(rows), make(rows), make(rows, dtype=torch.float32),
        make(1, dtype=torch.int64),
    )  # fmt: skip


has_side_effect(npu_ffn_worker_batching.overload)


@functools.cache
def _window(device):
    """Data of two sessions of one micro batch, two tokens, two experts; then numbers of sessions, batches and experts."""
    data = torch.arange(2 * 2 * 2 * 512, dtype=torch.int32).remainder(7).to(torch.uint8)
    lists = torch.tensor([1, 0, 0, 0, 3, 1, _CLEARED, 1, 0, 3, 1, 0], dtype=torch.int32)
    return torch.cat([data, lists.view(torch.uint8)]).to(device)


def _inputs(make):
    device = make(1).device
    context = torch.zeros(contexts.SIZE, dtype=torch.int8)
    fields = contexts.Context("sample", "context", context)
    start = _window(device).data_ptr()
    for name, value in {
        "session_num": 2, "micro_batch_num": 1, "micro_batch_size": 2, "selected_expert_num": 2,
        "attn_to_ffn_token_size": 512, "ffn.out_num": 2, "ffn.token_data_buf": start,
        "ffn.session_ids_buf": start + 4096, "ffn.micro_batch_ids_buf": start + 4104,
        "ffn.expert_ids_buf": start + 4112,
    }.items():  # fmt: skip
        fields[name] = value
    return context.to(device), 4, [2, 2, 2, 32]


npu_ffn_worker_batching.samples = [
    Sample(_inputs),
    Sample(_inputs, {"token_dtype": 2, "layer_num": 1}),
]
