"""ffn_worker_scheduler_: lists the sessions whose tokens have arrived at an FFN worker."""

from __future__ import annotations

import functools

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _schedule_context as contexts

_CLEARED = 0x7F7F7F7F  # an expert number that has been taken


@npu_op(
    "ffn_worker_scheduler_(Tensor(a!) self, *, int sync_group_size=1, int execute_mode=0) -> Tensor(a!)",
    functional="ffn_worker_scheduler(Tensor self, *, int sync_group_size=1, int execute_mode=0) -> Tensor",
    chips=("A3", "A5"),
)
def ffn_worker_scheduler_(self, sync_group_size):
    r"""Waits until a group of sessions has sent a micro batch, and lists its sessions, layers and experts.

    The table at token_info_buf of the context's FFN part is int32, (sessions, micro batches, 2 + BS (K + 1)): flag, layer and
    experts. With one group of all sessions, the micro batch at polling_index is waited for, which then moves on; with
    several, each group of which a micro batch has arrived gives its first. What is listed goes to layer_ids_buf,
    session_ids_buf, micro_batch_ids_buf and expert_ids_buf, the number of sessions to out_num; its flags and experts are
    cleared. A run_flag of 0 ends the wait, and nothing is listed.

    Args:
        self: int8, (1024,): CANN's ScheduleContext with schedule_mode 0, as `torch_npu._afd` makes it.
        sync_group_size: sessions that are waited for together, a divisor of their number.
        execute_mode: 0: once.

    Returns:
        `self`.

    Differs from upstream: a wait that takes more than two minutes raises.
    """
    context = contexts.Context("ffn_worker_scheduler_", "self", self)
    table, lists = _memory(context)
    sessions, batches = table.shape[:2]
    size = sync_group_size
    context.require(
        size <= sessions and sessions % size == 0, "session_num", f"a multiple of sync_group_size ({size})"
    )  # fmt: skip
    context["ffn.out_num"] = 0
    if size == sessions:
        batch = context["ffn.polling_index"]
        if context.wait(lambda: _ready(table[:, batch]), f"micro batch {batch} of all sessions"):
            _list(context, table, lists, 0, size, batch)
            context["ffn.polling_index"] = (batch + 1) % batches
        return self

    groups = range(0, sessions, size)
    found: dict[int, int] = {}

    def any_group():
        for first in groups:
            for batch in range(batches):
                if first not in found and _ready(table[first : first + size, batch]):
                    found[first] = batch
        return bool(found)

    if context.wait(any_group, "a micro batch of any group of sessions"):
        for first, batch in found.items():
            _list(context, table, lists, first, size, batch)
    return self


def _memory(context):
    """The table, and the four lists."""
    mode = contexts.FFN
    context.require(context["schedule_mode"] == mode, "schedule_mode", f"{mode} (FFN)")
    context.positive("session_num", "micro_batch_num", "micro_batch_size", "selected_expert_num")
    sessions, batches = context["session_num"], context["micro_batch_num"]
    experts = context["micro_batch_size"] * context["selected_expert_num"]
    inside = context["ffn.polling_index"] < batches
    context.require(inside, "ffn.polling_index", f"below micro_batch_num ({batches})")
    shapes = {
        "ffn.token_info_buf": (sessions, batches, 2 + experts),
        "ffn.layer_ids_buf": (sessions,),
        "ffn.session_ids_buf": (sessions,),
        "ffn.micro_batch_ids_buf": (sessions,),
        "ffn.expert_ids_buf": (sessions, experts),
    }
    found = []
    for name, shape in shapes.items():
        tensor = context.memory(name, shape, torch.int32)
        needed = tensor.numel() * 4
        context.require(context[f"{name}_size"] >= needed, f"{name}_size", f"of at least {needed}")
        found.append(tensor)
    return found[0], found[1:]


def _ready(rows):
    return bool((rows[:, 0] == contexts.READY).all())


def _list(context, table, lists, first, count, batch):
    """Appends the sessions and clears their part of the table."""
    layers, sessions, batches, experts = lists
    at = context["ffn.out_num"]
    rows = table[first : first + count, batch]
    layers[at : at + count] = rows[:, 1]
    sessions[at : at + count] = torch.arange(first, first + count)
    batches[at : at + count] = batch
    experts[at : at + count] = rows[:, 2:]
    rows[:, 2:] = _CLEARED
    rows[:, 0] = 0
    context["ffn.out_num"] = at + count


@ffn_worker_scheduler_.check
def _(self, sync_group_size, execute_mode):
    contexts.check("self", self)
    must.hold(sync_group_size > 0, "sync_group_size", "greater than 0", sync_group_size)
    must.choice("execute_mode", execute_mode, (0,))


@ffn_worker_scheduler_.meta
def _(self):
    return self


@functools.cache
def _window(device):
    """A table of two sessions of one micro batch of two experts, and the lists, kept for their address in samples."""
    return torch.zeros(2 * 4 + 2 * 3 + 2 * 2, dtype=torch.int32, device=device)


def _inputs(make):
    device = make(1).device
    context = torch.zeros(contexts.SIZE, dtype=torch.int8)
    fields = contexts.Context("sample", "context", context)
    start = _window(device).data_ptr()
    for name, value in {
        "schedule_mode": contexts.FFN, "session_num": 2, "micro_batch_num": 1, "micro_batch_size": 1,
        "selected_expert_num": 2, "run_flag": contexts.STOPPED, "ffn.token_info_buf": start,
        "ffn.token_info_buf_size": 32, "ffn.layer_ids_buf": start + 32, "ffn.layer_ids_buf_size": 8,
        "ffn.session_ids_buf": start + 40, "ffn.session_ids_buf_size": 8,
        "ffn.micro_batch_ids_buf": start + 48, "ffn.micro_batch_ids_buf_size": 8,
        "ffn.expert_ids_buf": start + 56, "ffn.expert_ids_buf_size": 16,
    }.items():  # fmt: skip
        fields[name] = value
    return (context.to(device),)


ffn_worker_scheduler_.samples = [
    Sample(_inputs, {"sync_group_size": 1}),
    Sample(_inputs, {"sync_group_size": 2}),
]
