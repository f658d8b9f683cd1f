"""Kind a: reads and writes of the same bytes on two streams with no order between them."""

from __future__ import annotations

import pytest
import torch

from tests.sanitizer import found_in, ready, streams


def _write_then_read(order):
    x, (s,) = torch.zeros(64, device="npu"), streams(1)
    x.fill_(1)
    if order:
        s.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(s):
        x + 1


def _read_then_write(order):
    x, (s,) = ready(), streams(1)
    y = x * 2
    if order:
        s.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(s):
        x.zero_()
    return y


def _two_writes(order):
    x, (s, t) = ready(), streams()
    with torch.npu.stream(s):
        x.fill_(1)
    if order:
        t.wait_stream(s)
    with torch.npu.stream(t):
        x.fill_(2)


def _by_an_event(order):
    x, (s, t) = ready(), streams()
    event = torch.npu.Event()
    if not order:
        event.record(s)  # too early
    with torch.npu.stream(s):
        x.add_(1)
    if order:
        event.record(s)
    t.wait_event(event)
    with torch.npu.stream(t):
        x.sum()


def _event_on_another_stream(order):
    x, (s, t, u) = ready(), streams(3)
    with torch.npu.stream(s):
        x.add_(1)
    t.wait_event((s if order else u).record_event())
    with torch.npu.stream(t):
        x.sum()


def _overlapping_views(order):
    x, (s, t) = ready(), streams()
    with torch.npu.stream(s):
        x[:130].add_(1)
    if order:
        t.wait_stream(s)
    with torch.npu.stream(t):
        x[128:].mul_(2)


def _columns_that_meet(order):
    x, (s, t) = ready(8, 8), streams()
    with torch.npu.stream(s):
        x[:, 0:4].add_(1)
    if order:
        t.wait_stream(s)
    with torch.npu.stream(t):
        x[:, 3:6].add_(1)


def _through_a_third_stream(order):
    x, (s, t, u) = ready(), streams(3)
    with torch.npu.stream(s):
        x.add_(1)
    t.wait_stream(s)
    u.wait_stream(t if order else u)
    with torch.npu.stream(u):
        x.sum()


def _out_argument(order):
    x, y, (s, t) = ready(), ready(), streams()
    with torch.npu.stream(s):
        torch.mul(x, 2, out=y)
    if order:
        t.wait_stream(s)
    with torch.npu.stream(t):
        torch.add(x, 1, out=y)


def _copy_on_another_stream(order):
    x, y, (s, t) = ready(), ready(), streams()
    with torch.npu.stream(s):
        y.copy_(x)
    if order:
        s.synchronize()
    with torch.npu.stream(t):
        y.sum()


def _operator_of_torch_npu(order):
    import torch_npu

    x, gamma, (s, t) = ready(4, 8), ready(8), streams()
    with torch.npu.stream(s):
        y = torch_npu.npu_rms_norm(x, gamma)[0]
    if order:
        t.wait_stream(s)
    with torch.npu.stream(t):
        y.sum()
    y.record_stream(t)


def _foreach(order):
    xs, (s, t) = [ready(), ready()], streams()
    with torch.npu.stream(s):
        torch._foreach_add_(xs, 1)
    if order:
        t.wait_stream(s)
    with torch.npu.stream(t):
        xs[1].sum()


def _running_statistics(order):
    norm, (s, t) = torch.nn.BatchNorm1d(4).npu(), streams()
    x = ready(8, 4)
    with torch.npu.stream(s):
        norm(x)
    if order:
        t.wait_stream(s)
    with torch.npu.stream(t):
        norm.running_mean.sum()


PROGRAMS = [
    _write_then_read, _read_then_write, _two_writes, _by_an_event, _event_on_another_stream, _overlapping_views,
    _columns_that_meet, _through_a_third_stream, _out_argument, _copy_on_another_stream, _operator_of_torch_npu,
    _foreach, _running_statistics,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_a_race_is_found(program):
    found = found_in(lambda: program(False))
    assert [f.kind for f in found] == ["a"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_the_right_program_is_silent(program):
    assert found_in(lambda: program(True)) == []


def _parts_that_do_not_meet():
    x, (s, t) = ready(64, 64), streams()
    for one, two in [
        (x[:32], x[32:]), (x[::2], x[1::2]), (x[:, ::2], x[:, 1::2]), (x[:, :32], x[:, 32:]),
        (x[:32, :32], x[32:, :32]), (x.view(4, 16, 64)[:, :8, :4], x.view(4, 16, 64)[:, 8:, :4]),
        (x.t()[:3], x.t()[3:]), (x.diagonal(), x[1:].diagonal()),
    ]:  # fmt: skip
        with torch.npu.stream(s):
            one.add_(1)
        with torch.npu.stream(t):
            two.add_(1)
        torch.npu.synchronize()


def _many_readers():
    x = ready()
    for s in streams(4):
        with torch.npu.stream(s):
            x.sum()


def _the_host_waits():
    x, (s, t) = ready(), streams()
    with torch.npu.stream(s):
        x.add_(1)
    torch.npu.synchronize()
    with torch.npu.stream(t):
        x.add_(1)
        assert x.sum().item() == 768  # item waits for the stream
    with torch.npu.stream(s):
        x.add_(1)


def _query():
    x, (s, t) = ready(), streams()
    with torch.npu.stream(s):
        x.add_(1)
        event = s.record_event()
    while not event.query():
        pass
    with torch.npu.stream(t):
        x.add_(1)


def _backward_on_a_side_stream():
    x, (s,) = ready(8, requires_grad=True), streams(1)
    s.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(s):
        loss = (x * x).sum()
    torch.npu.current_stream().wait_stream(s)
    loss.backward()
    x.grad.sum()


def _threads():
    from concurrent.futures import ThreadPoolExecutor

    x, (s,) = ready(), streams(1)

    def work():
        with torch.npu.stream(s):
            x.add_(1)
        s.synchronize()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    x.sum()


@pytest.mark.parametrize(
    "program",
    [_parts_that_do_not_meet, _many_readers, _the_host_waits, _query, _backward_on_a_side_stream, _threads],
    ids=lambda p: p.__name__.strip("_"),
)  # fmt: skip
def test_other_right_programs_are_silent(program):
    assert found_in(program) == []


def test_a_finding_says_who_where_what_and_the_repair():
    (found,) = found_in(lambda: _two_writes(False))
    first, second = found.accesses
    assert (first.operator, second.operator) == ("aten::fill_", "aten::fill_")
    assert first.stream != second.stream and "of npu:0" in first.stream
    assert first.tensor == "Float[256]"
    for access in found.accesses:
        assert access.stack[0].file == __file__ and access.stack[0].function == "_two_writes"
    assert second.stack[0].line > first.stack[0].line
    assert any(frame.function == "ready" for frame in found.allocated)
    assert "wait_stream" in found.repair and found.allocation_bytes == 1024


def test_the_same_race_is_told_once():
    x, (s, t) = ready(), streams()

    def program():
        for _ in range(5):
            with torch.npu.stream(s):
                x.add_(1)
            with torch.npu.stream(t):
                x.mul_(2)

    found = found_in(program)
    assert 1 <= len(found) <= 2 and sum(f.count for f in found) >= 5


def test_memory_is_bounded():
    from softnpu import _C, sanitizer

    x = ready(4096)
    with sanitizer.record():
        for i in range(2000):
            x[i : i + 2].add_(1)
            torch.ones(8, device="npu")
        assert _C.sanitizer_tracked() < 600
