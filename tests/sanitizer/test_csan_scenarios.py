"""The scenarios of PyTorch's CUDA sanitizer's own tests, as programs: what it finds is found, what it passes is silent."""

from __future__ import annotations

import pytest
import torch

from tests.sanitizer import found_in, ready, streams


def _read(stream, *tensors):
    with torch.npu.stream(stream):
        for tensor in tensors:
            tensor.sum()


def _write(stream, *tensors):
    with torch.npu.stream(stream):
        for tensor in tensors:
            tensor.add_(1)


def _chain(one, two):
    two.wait_event(one.record_event())


def _two_readers():
    x, (s, t) = ready(), streams()
    _read(s, x)
    _read(t, x)


def _read_then_write():
    x, (s, t) = ready(), streams()
    _read(s, x)
    _write(t, x)


def _read_then_write_in_order():
    x, (s, t) = ready(), streams()
    _read(s, x)
    _chain(s, t)
    _write(t, x)


def _every_read_checks_the_last_write():
    x, (s, t, u) = ready(), streams(3)
    _write(s, x)
    _chain(s, t)
    _read(t, x)
    _read(u, x)


def _branches_that_read():
    x, (s, t, u) = ready(), streams(3)
    _write(s, x)
    event = s.record_event()
    t.wait_event(event)
    u.wait_event(event)
    _read(t, x)
    _read(u, x)
    return x, t


def _a_branch_that_writes():
    x, t = _branches_that_read()
    _write(t, x)


def _ten_streams_in_a_chain():
    x, all_streams = ready(), streams(11)
    _read(all_streams[0], x)
    for one, two in zip(all_streams, all_streams[1:], strict=False):
        _chain(one, two)
    _write(all_streams[-1], x)


def _work_after_the_record():
    x, (s, t) = ready(), streams()
    _read(s, x)
    event = s.record_event()
    _read(s, x)
    t.wait_event(event)
    _write(t, x)


def _another_event_of_the_same_name():
    x, (s, t) = ready(), streams()
    _read(s, x)
    event = s.record_event()
    del event
    event = torch.npu.Event()
    event.record(t)
    t.wait_event(event)
    _write(t, x)


def _one_of_ten_readers_is_forgotten():
    _ten_readers(9)


def _all_readers_are_waited_for():
    _ten_readers(10)


def _ten_readers(waited_for):
    x, (writer, *readers) = ready(), streams(11)
    events = []
    for reader in readers:
        _read(reader, x)
        events.append(reader.record_event())
    for event in events[:waited_for]:
        writer.wait_event(event)
    _write(writer, x)


def _states_are_merged():
    x, y, (s, t) = ready(), ready(), streams()
    _write(s, x)
    _write(t, y)
    one, two = s.record_event(), t.record_event()
    _write(s, x)
    _write(t, y)
    t.wait_event(one)
    s.wait_event(two)
    _chain(t, s)
    _write(s, x, y)


def _two_waiters_of_one_event():
    x, (s, t, u) = ready(), streams(3)
    _write(s, x)
    event = s.record_event()
    for stream in (t, u):
        stream.wait_event(event)
        _read(stream, x)


def _device_synchronized():
    x, (s, t) = ready(), streams()
    _write(s, x)
    torch.npu.synchronize()
    _write(t, x)


def _stream_synchronized():
    x, (s, t) = ready(), streams()
    _write(s, x)
    s.synchronize()
    _write(t, x)


def _the_other_stream_synchronized():
    x, (s, t) = ready(), streams()
    _write(s, x)
    t.synchronize()
    _write(t, x)


def _event_synchronized():
    x, (s, t) = ready(), streams()
    _write(s, x)
    s.record_event().synchronize()
    _write(t, x)


WRONG = [
    _read_then_write, _every_read_checks_the_last_write, _a_branch_that_writes, _work_after_the_record,
    _another_event_of_the_same_name, _one_of_ten_readers_is_forgotten, _the_other_stream_synchronized,
]  # fmt: skip
RIGHT = [
    _two_readers, _read_then_write_in_order, _branches_that_read, _ten_streams_in_a_chain, _all_readers_are_waited_for,
    _states_are_merged, _two_waiters_of_one_event, _device_synchronized, _stream_synchronized, _event_synchronized,
]  # fmt: skip


@pytest.mark.parametrize("program", WRONG, ids=lambda p: p.__name__.strip("_"))
def test_found(program):
    assert [f.kind for f in found_in(program)] == ["a"]


@pytest.mark.parametrize("program", RIGHT, ids=lambda p: p.__name__.strip("_"))
def test_silent(program):
    assert found_in(program) == []


def test_each_tensor_that_races_is_told():
    def program():
        (s, t), many = streams(), [ready(8 + n) for n in range(10)]
        with torch.npu.stream(s):
            torch._foreach_add_(many, 1)
        with torch.npu.stream(t):
            torch._foreach_mul_(many, 2)

    found = found_in(program)
    assert {f.kind for f in found} == {"a"} and sum(f.count for f in found) == 10


def _reads_and_writes(work, read, written):
    """Which of the tensors the operator reads and which it writes: a write before it on another stream races with
    both, a read with what it writes alone."""
    for tensor in (*read, *written):
        (s, t) = streams()

        def program(touch, tensor=tensor, s=s, t=t):
            touch(s, tensor)
            with torch.npu.stream(t):
                work()

        assert found_in(lambda: program(_write)), "a write of another stream must race"
        found = found_in(lambda: program(_read))
        assert bool(found) == any(tensor is one for one in written)


def test_what_operators_read_and_write():
    a, b, c = ready(4, 4), ready(4, 4), ready(4, 4)
    vector, mask = ready(4), ready(4, 4) > 0
    torch.npu.synchronize()
    for work, read, written in [
        (lambda: torch.add(a, b), (a, b), ()),
        (lambda: torch.cat((a, b, c), 1), (a, b, c), ()),
        (lambda: a.add_(b), (b,), (a,)),
        (lambda: torch.mul(a, 3, out=b), (a,), (b,)),
        (lambda: torch.nonzero(a, as_tuple=True), (a,), ()),
        (lambda: torch.addr(a, vector, vector), (a, vector), ()),
        (lambda: torch.where(mask, a, b), (a, b), ()),
        (lambda: torch.addmm(a, b, c), (a, b, c), ()),
        (lambda: torch.addcmul(a, b, c, out=c), (a, b), (c,)),
        (lambda: torch._foreach_addcdiv_([a], [b], [c]), (b, c), (a,)),
        (lambda: a.index_copy_(0, torch.arange(4, device="npu"), b), (b,), (a,)),
    ]:
        _reads_and_writes(work, read, written)


def test_views_are_no_work():
    def program():
        x, (s, t) = ready(10, 2), streams()
        _write(s, x)
        with torch.npu.stream(t):
            torch.split(x, 2)
            x.view(-1)[3:].t()

    assert found_in(program) == []
