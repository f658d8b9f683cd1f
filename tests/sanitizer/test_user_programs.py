"""Programs as people write them, each with the wait that it forgot and with it: what must be found, and what must not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_npu
from tests.sanitizer import found_in, ready, streams


class _Prefetcher:
    """Copies the next batch on a side stream while this one is used, as many data loaders do."""

    def __init__(self, batches, waits, records):
        self.batches, self.waits, self.records = iter(batches), waits, records
        self.side = torch.npu.Stream()
        self._load()

    def _load(self):
        host = next(self.batches, None)
        self.next = None
        if host is not None:
            with torch.npu.stream(self.side):
                self.next = host.to("npu", non_blocking=True)
                self.next = self.next * 2

    def take(self):
        if self.waits:
            torch.npu.current_stream().wait_stream(self.side)
        batch = self.next
        if batch is not None and self.records:
            batch.record_stream(torch.npu.current_stream())
        self._load()
        return batch


def _prefetch(waits=True, records=True):
    batches = [torch.full((1024,), float(n)).pin_memory() for n in range(4)]
    loader, total = _Prefetcher(batches, waits, records), ready(1)
    while (batch := loader.take()) is not None:
        total += batch.sum()
        del batch


def _prefetch_without_wait(order):
    _prefetch(waits=order)


def _prefetch_without_record_stream(order):
    _prefetch(records=order)


def _offload(order):
    """Activations to pinned memory and back."""
    (side,) = streams(1)
    x, host = ready(2048), torch.empty(2048, pin_memory=True)
    y = x * 3
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        host.copy_(y, non_blocking=True)
    if order:
        y.record_stream(side)
    del y
    z = torch.zeros(2048, device="npu")  # may be the memory of y
    with torch.npu.stream(side):
        back = host.to("npu", non_blocking=True)
    torch.npu.current_stream().wait_stream(side)
    return back.sum() + z.sum()


def _load_before_the_offload_is_done(order):
    (out, back) = streams()
    x, host = ready(2048), torch.empty(2048, pin_memory=True)
    with torch.npu.stream(out):
        host.copy_(x, non_blocking=True)
    if order:
        back.wait_stream(out)
    with torch.npu.stream(back):
        return host.to("npu", non_blocking=True)


def _double_buffering(order):
    """Two device buffers in turn; the copy must wait until its buffer was used."""
    (side,) = streams(1)
    buffers, source = [ready(512), ready(512)], ready(512)
    filled = [torch.npu.Event() for _ in range(2)]
    used = [torch.npu.Event() for _ in range(2)]
    for step in range(5):
        slot = step % 2
        with torch.npu.stream(side):
            if order:
                used[slot].wait()
            buffers[slot].copy_(source)
            filled[slot].record()
        filled[slot].wait()
        buffers[slot].mul(2)
        used[slot].record()


def _one_pinned_staging_buffer(order):
    """The host fills one pinned buffer again and again."""
    staging = torch.empty(1024, pin_memory=True)
    done = torch.npu.Event()
    for step in range(3):
        if order:
            done.synchronize()
        staging.fill_(step)
        staging.to("npu", non_blocking=True)
        done.record()


def _gradient_accumulated_aside(order):
    """A hook that sums gradients up on its own stream."""
    model, (side,) = nn.Linear(8, 8).npu(), streams(1)
    total = torch.zeros(8, 8, device="npu")
    torch.npu.synchronize()

    def hook(grad):
        if order:
            side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            total.add_(grad)
        grad.record_stream(side)

    model.weight.register_hook(hook)
    model(ready(4, 8)).sum().backward()


def _optimizer_on_a_side_stream(order):
    model, x, (side,) = nn.Linear(8, 8).npu(), ready(4, 8), streams(1)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    model(x).sum().backward()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        optimizer.step()
    if order:
        torch.npu.current_stream().wait_stream(side)
    model(x)
    torch.npu.synchronize()


def _fused_optimizer_of_torch_npu(order):
    model, x, (side,) = nn.Linear(8, 8).npu(), ready(4, 8), streams(1)
    optimizer = torch_npu.optim.NpuFusedAdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model(x).sum().backward()
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            optimizer.step()
        if order:
            torch.npu.current_stream().wait_stream(side)
        with torch.no_grad():
            model(x)
        torch.npu.current_stream().wait_stream(side)
        optimizer.zero_grad()


def _running_average_of_weights(order):
    model, (side,) = nn.Linear(8, 8).npu(), streams(1)
    average = [p.detach().clone() for p in model.parameters()]
    torch.npu.synchronize()
    with torch.no_grad():
        with torch.npu.stream(side):
            torch._foreach_lerp_(average, list(model.parameters()), 0.1)
        if order:
            torch.npu.current_stream().wait_stream(side)
        torch._foreach_add_(list(model.parameters()), 1)


def _cache_written_aside(order):
    """A key cache that one stream fills and attention reads on another."""
    half = {"dtype": torch.float16}
    cache, other, (side,) = ready(4, 16, 2, 16, **half), ready(4, 16, 2, 16, **half), streams(1)
    key, value, query = ready(3, 2, 16, **half), ready(3, 2, 16, **half), ready(1, 2, 16, **half)
    slots = torch.tensor([1, 17, 33], dtype=torch.int32).npu()
    with torch.npu.stream(side):
        torch_npu._npu_reshape_and_cache(key, value, cache, other, slots)
    if order:
        torch.npu.current_stream().wait_stream(side)
    return (cache.view(64, 2, 16) * query).sum()


def _cache_scattered_aside(order):
    cache, update, (side,) = ready(2, 2, 16, 8), ready(2, 2, 1, 8), streams(1)
    with torch.npu.stream(side):
        torch_npu.scatter_update_(cache, torch.tensor([3, 5]).npu(), update, -2)
    if order:
        torch.npu.current_stream().wait_stream(side)
    return cache.sum()


def _views_of_one_buffer(order):
    """Slices of a flat gradient buffer; one of them is an element too long."""
    flat, (side,) = ready(1000), streams(1)
    end = 500 if order else 501
    with torch.npu.stream(side):
        flat[:end].mul_(2)
    flat[500:].add_(1)


def _interleaved_heads(order):
    """q and k of one fused projection, as views that interleave; k begins one column early."""
    fused, (side,) = ready(6, 4, 3, 8), streams(1)
    q, k = fused[:, :, 0], fused[:, :, 1] if order else fused[:, :, 0, 4:]
    with torch.npu.stream(side):
        q.mul_(2)
    k.add_(1)


def _every_other_row_of_a_transposed_view(order):
    x, (side,) = ready(32, 32), streams(1)
    one, two = x.t()[::2], x.t()[1::2] if order else x.t()[::4]
    with torch.npu.stream(side):
        one.add_(1)
    two.mul_(2)


def _as_strided(order):
    x, (side,) = ready(64), streams(1)
    with torch.npu.stream(side):
        torch.as_strided(x, (4, 4), (8, 1)).add_(1)
    torch.as_strided(x, (4, 4), (8, 1), 4 if order else 3).add_(1)


def _out_of_a_product(order):
    a, b, out, (side,) = ready(16, 16), ready(16, 16), ready(16, 16), streams(1)
    with torch.npu.stream(side):
        torch.mm(a, b, out=out)
    if order:
        torch.npu.current_stream().wait_stream(side)
    torch.addmm(out, a, b)


def _norm_with_residual(order):
    """npu_add_rms_norm reads what another stream still writes."""
    x, residual, gamma, (side,) = ready(4, 16), ready(4, 16), ready(16), streams(1)
    with torch.npu.stream(side):
        residual.add_(1)
    if order:
        torch.npu.current_stream().wait_stream(side)
    torch_npu.npu_add_rms_norm(x, residual, gamma)


def _rope_in_place(order):
    q, k, (side,) = ready(1, 4, 2, 64, dtype=torch.float16), ready(1, 4, 2, 64, dtype=torch.float16), streams(1)  # fmt: skip
    cos, sin = ready(1, 4, 1, 64, dtype=torch.float16), ready(1, 4, 1, 64, dtype=torch.float16)
    with torch.npu.stream(side):
        torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, "BSND")
    if order:
        torch.npu.current_stream().wait_stream(side)
    return q.sum()


def _swiglu(order):
    x, (side,) = ready(4, 32), streams(1)
    with torch.npu.stream(side):
        y = torch_npu.npu_swiglu(x)
    if order:
        torch.npu.current_stream().wait_stream(side)
    y.record_stream(torch.npu.current_stream())
    return y.sum()


def _event_of_the_loop_before(order):
    """The event is waited for before it is recorded in this step: the order is that of the step before."""
    x, (side,) = ready(), streams(1)
    event = torch.npu.Event()
    event.record(side)
    for _ in range(2):
        with torch.npu.stream(side):
            x.add_(1)
            if order:
                event.record()
        torch.npu.current_stream().wait_event(event)
        y = x * 2
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            event.record()
    return y


def _result_of_a_side_stream_that_is_freed(order):
    """Memory of a side stream, used on the main stream, freed in a function."""
    (side,) = streams(1)

    def compute():
        with torch.npu.stream(side):
            made = torch.full((4096,), 2.0, device="npu")
        torch.npu.current_stream().wait_stream(side)
        if order:
            made.record_stream(torch.npu.current_stream())
        return made.sum()

    first = compute()
    return first + compute()


def _graph_whose_input_is_filled_aside(order):
    static, (side,) = ready(64), streams(1)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = static * 2
    host = torch.ones(64).pin_memory()
    with torch.npu.stream(side):
        static.copy_(host, non_blocking=True)
    if order:
        torch.npu.current_stream().wait_stream(side)
    graph.replay()
    return result.sum()


def _graph_result_used_by_a_side_stream(order):
    static, (side,) = ready(64), streams(1)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = static * 2
    for _ in range(2):
        graph.replay()
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            copy = result.clone()
        if order:
            torch.npu.current_stream().wait_stream(side)
    return copy


def _host_copy_of_a_loss(order):
    """A loss that is logged without a wait."""
    loss = ready(1) * 3
    logged = loss.to("cpu", non_blocking=True)
    if order:
        torch.npu.current_stream().synchronize()
    return float(logged)


def _weights_swapped_in(order):
    """Layer-wise loading: the next layer's weights replace those in use."""
    slot, (side,) = ready(256), streams(1)
    layers = [torch.full((256,), float(n)).pin_memory() for n in range(3)]
    for weights in layers:
        with torch.npu.stream(side):
            if order:
                side.wait_stream(torch.npu.default_stream())
            slot.copy_(weights, non_blocking=True)
        torch.npu.current_stream().wait_stream(side)
        slot.mul(2)


PROGRAMS = {
    _prefetch_without_wait: "ab", _prefetch_without_record_stream: "b", _offload: "b",
    _load_before_the_offload_is_done: "c", _double_buffering: "a", _one_pinned_staging_buffer: "c",
    _gradient_accumulated_aside: "a", _optimizer_on_a_side_stream: "a", _fused_optimizer_of_torch_npu: "ab",
    _running_average_of_weights: "a", _cache_written_aside: "a", _cache_scattered_aside: "a", _views_of_one_buffer: "a",
    _interleaved_heads: "a", _every_other_row_of_a_transposed_view: "a", _as_strided: "a", _out_of_a_product: "a",
    _norm_with_residual: "a", _rope_in_place: "a", _swiglu: "a", _event_of_the_loop_before: "a",
    _result_of_a_side_stream_that_is_freed: "b", _graph_whose_input_is_filled_aside: "a",
    _graph_result_used_by_a_side_stream: "a", _host_copy_of_a_loss: "c", _weights_swapped_in: "a",
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_what_was_forgotten_is_found(program):
    kinds = {f.kind for f in found_in(lambda: program(False))}
    assert kinds and kinds <= set(PROGRAMS[program])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_the_right_program_is_silent(program):
    assert found_in(lambda: program(True)) == []
