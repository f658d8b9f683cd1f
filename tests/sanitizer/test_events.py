"""Kind f: events that order nothing, because nobody records them or somebody records them again."""

from __future__ import annotations

import pytest
import torch

from tests.sanitizer import found_in, ready, streams


def _never_recorded(order):
    x, (s, t) = ready(), streams()
    event = torch.npu.Event()
    with torch.npu.stream(s):
        x.sum()
        if order:
            event.record()
    t.wait_event(event)
    with torch.npu.stream(t):
        x.sum()


def _recorded_only_on_a_branch(order):
    event, (s,) = torch.npu.Event(), streams(1)
    if order:
        event.record(s)
    event.wait()


def _the_other_event_is_recorded(order):
    one, two, (s,) = torch.npu.Event(), torch.npu.Event(), streams(1)
    (two if order else one).record(s)
    torch.npu.current_stream().wait_event(two)


def _external_event_that_nobody_records(order):
    event, (s,) = torch.npu.ExternalEvent(), streams(1)
    event.wait(s)
    with torch.npu.stream(s):
        torch.ones(4, device="npu")
    if order:
        event.record()
        torch.npu.synchronize()
    else:
        _FREE_LATER.append(event)


def _external_event_recorded_twice(order):
    event, (s,) = torch.npu.ExternalEvent(), streams(1)
    event.record()
    if order:
        event.wait(s)
        event.reset(s)
        s.synchronize()
    else:
        event.wait(s)
    event.record()


def _recorded_again_before_the_wait(order):
    x, (s, t, u) = ready(), streams(3)
    event = torch.npu.Event()
    with torch.npu.stream(s):
        x.add_(1)
    event.record(s)
    if order:
        t.wait_event(event)
    event.record(u)  # the record on s is lost
    t.wait_event(event)
    with torch.npu.stream(t):
        x.add_(1)


_FREE_LATER: list[torch.npu.ExternalEvent] = []
PROGRAMS = [
    _never_recorded, _recorded_only_on_a_branch, _the_other_event_is_recorded, _external_event_that_nobody_records,
    _external_event_recorded_twice, _recorded_again_before_the_wait,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _unblock():
    yield
    while _FREE_LATER:
        _FREE_LATER.pop().record()


def _found(program, order):
    from softnpu import sanitizer

    torch.npu.synchronize()
    with sanitizer.record() as found:
        program(order)
    return found


@pytest.mark.npu_races("waits for events that nobody records")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_an_event_that_orders_nothing_is_found(program):
    assert [f.kind for f in _found(program, False)] == ["f"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_the_right_program_is_silent(program):
    assert _found(program, True) == []


def test_a_first_wait_before_the_first_record_is_silent():
    def program():
        events = [torch.npu.Event(), torch.npu.Event()]
        for step in range(4):
            torch.npu.current_stream().wait_event(events[step % 2])
            events[step % 2].record()

    assert found_in(program) == []
