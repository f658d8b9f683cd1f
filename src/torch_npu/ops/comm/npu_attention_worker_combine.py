"""npu_attention_worker_combine: an attention worker sums up what the FFN workers wrote into its window."""

from __future__ import annotations

import functools

import torch
from torch.fx.node import has_side_effect

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared import _schedule_context as contexts

_MAX_CHOICES = 64
_HALF_NUMBER = 5  # of torch.half, for which programs give the dtype itself


@npu_op(
    "npu_attention_worker_combine(Tensor schedule_context, Tensor expert_scales, Tensor layer_id, int hidden_size, "
    "*, int token_dtype=0, int need_schedule=0) -> (Tensor, Tensor)",
    chips=("A2", "A3"),
)
def npu_attention_worker_combine(
    schedule_context, expert_scales, layer_id, hidden_size, token_dtype, need_schedule
):
    r"""Sums the rows of each token, the routed experts' weighted, and names the next layer.

    $$ y_i = \sum_{k=1}^{K} w_{i,k} \, d_{i,k} + d_{i,K+1}, \qquad \mathrm{next} = \mathrm{layer\_id} + 1 $$

    The rows d lie at token_data_buf of the context's attention part, (micro batches, BS, K + 1, H); the last one of a token
    is the shared expert's. The table at token_info_buf, int32, (micro batches, BS, K + 1), has a 1 for each that has
    arrived.

    Args:
        schedule_context: int8, (1024,): CANN's ScheduleContext, as `torch_npu._afd` makes it.
        expert_scales: w, (BS, K), float32, K up to 64.
        layer_id: (1,), int32.
        hidden_size: H.
        token_dtype: 0: d and y are float16; 1: bfloat16.
        need_schedule: 0: takes the micro batch that the context names; 1: waits until all rows of the next one have
            arrived, clears their flags and writes its number into the context.

    Returns:
        y (BS, H), and the next layer's number, (1,), int32. Sums are float32.

    Differs from upstream: a wait that takes more than two minutes raises.
    """
    tokens, choices = expert_scales.shape
    context = contexts.Context("npu_attention_worker_combine", "schedule_context", schedule_context)
    batch = context["attention.micro_batch_id"]
    table = tokens * (choices + 1)
    if need_schedule:
        context.positive("micro_batch_num")
        batch = (batch + 1) % context["micro_batch_num"]
        flags = context.memory("attention.token_info_buf", (table,), torch.int32, batch * table * 4)
        context.wait(
            lambda: int(flags.sum()) == table, f"the rows of micro batch {batch}", stoppable=False
        )
    dtype = _dtype(token_dtype)
    shape = tokens, choices + 1, hidden_size
    start = batch * table * hidden_size * dtype.itemsize
    rows = context.copy("attention.token_data_buf", shape, dtype, start)
    total = rows.new_zeros(tokens, hidden_size, dtype=torch.float32)
    for choice in range(choices):  # one after another, as the card adds
        total += rows[:, choice].float() * expert_scales[:, choice : choice + 1]
    y = (total + rows[:, choices].float()).to(dtype)
    if need_schedule:
        flags.zero_()
        context["attention.micro_batch_id"] = batch
    return y, layer_id + 1


def _dtype(token_dtype):
    return torch.bfloat16 if token_dtype == 1 else torch.float16


@npu_attention_worker_combine.check
def _(schedule_context, expert_scales, layer_id, hidden_size, token_dtype, need_schedule):
    contexts.check("schedule_context", schedule_context)
    must.dtype("expert_scales", expert_scales, torch.float32)
    must.ndim("expert_scales", expert_scales, 2)
    choices = expert_scales.shape[1]
    ok = choices <= _MAX_CHOICES
    must.hold(ok, "expert_scales", f"of at most {_MAX_CHOICES} experts a token", choices)
    must.dtype("layer_id", layer_id, torch.int32)
    must.shape("layer_id", layer_id, (1,))
    must.hold(hidden_size > 0, "hidden_size", "greater than 0", hidden_size)
    ok = token_dtype in (0, 1, _HALF_NUMBER)
    must.hold(ok, "token_dtype", "0 (float16) or 1 (bfloat16)", token_dtype)
    must.choice("need_schedule", need_schedule, (0, 1))


@npu_attention_worker_combine.meta
def _(schedule_context, expert_scales, hidden_size, token_dtype):
    y = (expert_scales.shape[0], hidden_size)
    return (
        expert_scales.new_empty(y, dtype=_dtype(token_dtype)),
        schedule_context.new_empty(1, dtype=torch.int32),
    )


has_side_effect(npu_attention_worker_combine.overload)


@functools.cache
def _rows(device, dtype):
    """Rows of two micro batches of three tokens, kept for the address of them in samples."""
    return (torch.arange(2 * 3 * 3 * 8, device=device) % 13 - 6).to(dtype)


def _inputs(make, dtype):
    layer = make(1, dtype=torch.int32, low=0, high=9)
    context = torch.zeros(contexts.SIZE, dtype=torch.int8)
    fields = contexts.Context("sample", "context", context)
    fields["micro_batch_num"] = 2
    fields["attention.micro_batch_id"] = 1
    fields["attention.token_data_buf"] = _rows(layer.device, dtype).data_ptr()
    return context.to(layer.device), make(3, 2), layer, 8


npu_attention_worker_combine.samples = [
    Sample(lambda make: _inputs(make, torch.float16)),
    Sample(lambda make: _inputs(make, torch.bfloat16), {"token_dtype": 1}),
]
