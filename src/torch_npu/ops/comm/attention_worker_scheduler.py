"""attention_worker_scheduler_: waits until the rows of an attention worker's next micro batch have arrived."""

from __future__ import annotations

import functools

import torch

from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _schedule_context as contexts


@npu_op(
    "attention_worker_scheduler_(Tensor(a!) self) -> Tensor(a!)",
    functional="attention_worker_scheduler(Tensor self) -> Tensor",
    chips=("A3", "A5"),
)
def attention_worker_scheduler_(self):
    r"""Waits until all flags of the next micro batch are set, clears them, and writes its number into the context.

    The flags are the table at token_info_buf of the context's attention part: int32, (micro batches, BS, K + 1), 1 for a row
    that has arrived. A run_flag of 0 ends the wait, and nothing changes.

    Args:
        self: int8, (1024,): CANN's ScheduleContext with schedule_mode 1, as `torch_npu._afd` makes it.

    Returns:
        `self`.

    Differs from upstream: a wait that takes more than two minutes raises.
    """
    context = contexts.Context("attention_worker_scheduler_", "self", self)
    mode = contexts.ATTENTION
    context.require(context["schedule_mode"] == mode, "schedule_mode", f"{mode} (attention)")
    context.positive("micro_batch_num", "micro_batch_size", "selected_expert_num")
    context.positive("attention.token_info_buf", "attention.token_data_buf")
    batches, last = context["micro_batch_num"], context["attention.micro_batch_id"]
    inside = last < batches
    context.require(inside, "attention.micro_batch_id", f"below micro_batch_num ({batches})")
    flags = context["micro_batch_size"] * context["selected_expert_num"]
    size = context["attention.token_info_buf_size"]
    needed = batches * flags * 4
    context.require(size >= needed, "attention.token_info_buf_size", f"of at least {needed}")
    batch = (last + 1) % batches
    table = context.memory("attention.token_info_buf", (batches, flags), torch.int32)[batch]
    if context.wait(lambda: bool((table == contexts.READY).all()), f"micro batch {batch}"):
        table.zero_()
        context["attention.micro_batch_id"] = batch
    return self


@attention_worker_scheduler_.check
def _(self):
    contexts.check("self", self)


@attention_worker_scheduler_.meta
def _(self):
    return self


@functools.cache
def _window(device):
    """A table of two micro batches, kept for its address in samples."""
    return torch.ones(2 * 3 * 2, dtype=torch.int32, device=device)


def _inputs(make, running):
    device = make(1).device
    context = torch.zeros(contexts.SIZE, dtype=torch.int8)
    fields = contexts.Context("sample", "context", context)
    start = _window(device).fill_(1).data_ptr()
    for name, value in {
        "schedule_mode": contexts.ATTENTION, "micro_batch_num": 2, "micro_batch_size": 3,
        "selected_expert_num": 2, "run_flag": running, "attention.token_info_buf": start,
        "attention.token_info_buf_size": 48, "attention.token_data_buf": start,
    }.items():  # fmt: skip
        fields[name] = value
    return (context.to(device),)


attention_worker_scheduler_.samples = [
    Sample(lambda make: _inputs(make, contexts.STOPPED)),
]
