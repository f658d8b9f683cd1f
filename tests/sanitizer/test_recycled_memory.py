"""Kind b: memory that is freed, and may be recycled, while another stream uses it."""

from __future__ import annotations

import pytest
import torch

import torch_npu
from tests.sanitizer import found_in, ready, streams


def _used_aside(order):
    (s,) = streams(1)
    x = ready(1000)
    with torch.npu.stream(s):
        y = x * 2
    if order:
        x.record_stream(s)
    del x
    torch.zeros(1000, device="npu")
    return y


def _waited_for_too_late(order):
    (s,) = streams(1)
    x = ready(1000)
    with torch.npu.stream(s):
        y = x * 2
    del x
    if order:
        torch.npu.current_stream().wait_stream(s)
    z = torch.zeros(1000, device="npu")
    torch.npu.current_stream().wait_stream(s)
    return y, z


def _made_aside(order):
    (s,) = streams(1)
    with torch.npu.stream(s):
        x = torch.ones(1000, device="npu")
    torch.npu.current_stream().wait_stream(s)
    y = x + 1
    if order:
        x.record_stream(torch.npu.current_stream())
    del x
    with torch.npu.stream(s):
        torch.ones(1000, device="npu")
    return y


def _another_size(order):
    (s,) = streams(1)
    x = ready(100_000)
    with torch.npu.stream(s):
        y = x * 2
    if order:
        s.synchronize()
    del x
    torch.zeros(10_000, device="npu")
    return y


def _temporary(order):
    (s,) = streams(1)
    x = ready(1000)
    with torch.npu.stream(s):
        (x.view(10, 100)[2:].t()).sum()
    if order:
        torch.npu.current_stream().wait_event(s.record_event())
    del x
    ready(1000)


def _erased_too_early(order):
    (s,) = streams(1)
    x = ready(1000)
    with torch.npu.stream(s):
        y = x * 2
    x.record_stream(s)
    if order:
        torch.npu.current_stream().wait_stream(s)
    torch_npu.erase_stream(x, s)
    del x
    torch.zeros(1000, device="npu")
    return y


def _two_streams_one_recorded(order):
    s, t = streams()
    x = ready(1000)
    for stream in (s, t):
        with torch.npu.stream(stream):
            x.sum()
    x.record_stream(s)
    if order:
        x.record_stream(t)
    del x
    torch.zeros(1000, device="npu")


PROGRAMS = [
    _used_aside, _waited_for_too_late, _made_aside, _another_size, _temporary, _erased_too_early,
    _two_streams_one_recorded,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_memory_freed_too_early_is_found(program):
    found = found_in(lambda: program(False))
    assert {f.kind for f in found} == {"b"}
    assert ("erase_stream" in found[0].text) == (program is _erased_too_early)
    assert found[0].related and found[0].allocated


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_the_right_program_is_silent(program):
    assert found_in(lambda: program(True)) == []


def test_copies_between_devices_are_ordered_with_both():
    def program():
        for _ in range(3):
            x = torch.ones(1000, device="npu:0")
            y = x.to("npu:1")
            x.add_(1)
            y.add_(1)
            x.copy_(y)
            y.add_(1)
            del x
            torch.zeros(1000, device="npu:0")

    assert found_in(program) == []


def test_the_allocators_own_reuse_is_silent():
    def program():
        s, t = streams()
        for _ in range(20):
            for stream in (s, t, torch.npu.current_stream()):
                with torch.npu.stream(stream):
                    x = torch.ones(500, device="npu")
                    y = x * 2
                    del x
                    z = torch.ones(500, device="npu")
                    del y, z

    assert found_in(program) == []


def test_memory_that_is_written_only_after_the_wait_is_silent():
    def program():
        (s,) = streams(1)
        x = ready(1000)
        with torch.npu.stream(s):
            y = x * 2
        del x
        z = torch.empty(1000, device="npu")  # the same bytes, not written yet
        torch.npu.current_stream().wait_stream(s)
        z.fill_(1)
        return y

    assert found_in(program) == []
