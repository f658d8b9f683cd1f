"""Kind c: pinned host memory that the host touches while a copy is under way."""

from __future__ import annotations

import pytest
import torch

from tests.sanitizer import found_in, ready, streams


def _pinned(*shape, **options):
    return torch.ones(*(shape or (1024,)), **options).pin_memory()


def _tolist(order):
    host = _pinned()
    host.copy_(ready(1024), non_blocking=True)
    if order:
        torch.npu.current_stream().synchronize()
    host.tolist()


def _to_cpu(order):
    host = ready(1024).to("cpu", non_blocking=True)
    if order:
        torch.npu.synchronize()
    host.sum()


def _item_of_a_view(order):
    host, x = _pinned(4, 1024), ready(4, 1024)
    host.copy_(x, non_blocking=True)
    event = torch.npu.Event()
    event.record()
    if order:
        event.synchronize()
    host[2, 5].item()


def _numpy_view_made_before(order):
    host = _pinned()
    view = host.numpy()[100:]
    host.copy_(ready(1024), non_blocking=True)
    if order:
        torch.npu.synchronize()
    view.sum()


def _overwritten(order):
    host, x = _pinned(), ready(1024)
    x.copy_(host, non_blocking=True)
    if order:
        torch.npu.current_stream().synchronize()
    host.fill_(3)


def _overwritten_by_numpy(order):
    host, x = _pinned(), ready(1024)
    x.copy_(host, non_blocking=True)
    if order:
        torch.npu.current_stream().synchronize()
    host.numpy()[7] = 3


def _overwritten_after_to(order):
    host = _pinned()
    host.to("npu", non_blocking=True)
    if order:
        torch.npu.synchronize()
    host.add_(1)


def _the_wrong_stream(order):
    host, x, (s,) = _pinned(), ready(1024), streams(1)
    with torch.npu.stream(s):
        host.copy_(x, non_blocking=True)
    (s if order else torch.npu.current_stream()).synchronize()
    host.sum()


PROGRAMS = [
    _tolist, _to_cpu, _item_of_a_view, _numpy_view_made_before, _overwritten, _overwritten_by_numpy,
    _overwritten_after_to, _the_wrong_stream,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_pinned_memory_used_too_early_is_found(program):
    (found,) = found_in(lambda: program(False))
    assert found.kind == "c" and "synchronize" in found.repair
    assert any(frame.function == program.__name__ for frame in found.accesses[1].stack)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_the_right_program_is_silent(program):
    assert found_in(lambda: program(True)) == []


def _reading_what_is_read():
    host, x = _pinned(), ready(1024)
    x.copy_(host, non_blocking=True)
    assert host.sum() == 1024
    assert host.numpy()[3] == 1


def _two_halves():
    host, x = _pinned(2, 4096), ready(4096)
    host[0].copy_(x, non_blocking=True)
    host[1].fill_(2)


def _blocking():
    host, x = _pinned(), ready(1024)
    host.copy_(x)
    assert host.tolist()[0] == 1


def _freed_while_it_is_copied():
    x = ready(1024)
    for value in range(3):
        x.copy_(torch.full((1024,), float(value)).pin_memory(), non_blocking=True)


def _host_function():
    host, x, seen = _pinned(), ready(1024), []
    host.copy_(x, non_blocking=True)
    from torch_npu.npu import _host_functions

    stream = torch.npu.current_stream()
    _host_functions._launch_host_func_pending(stream, lambda: seen.append(host.sum().item()), ())
    torch.npu.synchronize()
    assert seen == [1024]


@pytest.mark.parametrize(
    "program",
    [_reading_what_is_read, _two_halves, _blocking, _freed_while_it_is_copied, _host_function],
    ids=lambda p: p.__name__.strip("_"),
)
def test_other_right_programs_are_silent(program):
    assert found_in(program) == []


def test_the_program_goes_on_and_reads_what_was_copied():
    values = []

    def program():
        host = _pinned()
        host.copy_(ready(1024) * 7, non_blocking=True)
        values.extend(host.tolist())

    assert len(found_in(program)) == 1
    assert values == [7.0] * 1024
